"""Launching and isolating attempts: processes, namespaces, mounts, file ops."""
