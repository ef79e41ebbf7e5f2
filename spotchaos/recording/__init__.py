"""A run recorded operation by operation, so that crashes in it need not be repeated.

Gives recorded runs that can be cut at any file operation; recorders in Python and by
strace stand in where the supervisor cannot run. May import trial and what lies below it.
"""
