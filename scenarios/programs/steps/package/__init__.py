"""A training package, started as `python -m package` or by its console script."""
