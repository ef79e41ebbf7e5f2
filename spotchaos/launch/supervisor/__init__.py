"""The supervisor of file operations: seccomp user notification, in plain Python.

It carries out each mutating file operation of a program itself, records it, and holds or
fails the one that a plan names. Standard library only but for `strace`, which reads the
same log out of strace's text. May import errors and persistence.
"""
