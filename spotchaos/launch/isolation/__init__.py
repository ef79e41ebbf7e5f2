"""Isolation of an attempt: namespaces, private views, environment, credentials.

Gives `Workspace` and its views, the mechanisms that this machine offers, and the first
processes of an attempt. What runs beside the program (`inside`, `children`,
`namespaces`) is standard library only, Python 3.9. May import errors and trace.
"""
