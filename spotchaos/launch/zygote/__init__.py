"""Zygotes: processes that have imported what a program imports, and fork attempts.

Gives `raised_for` and the check which commands can be forked. The child's side is loaded
by path: standard library only, Python 3.9. May import errors, trace, launch.isolation.
"""
