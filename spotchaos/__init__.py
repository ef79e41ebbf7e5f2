"""Chaos testing for checkpoints: interrupt a training run, resume it, compare.

Importing this package imports no torch.
"""

__version__ = "0.2.0"
