"""A module that is found only through the PYTHONPATH that the command sets."""


def rate(step):
    return 1e-2 / (1 + step)
