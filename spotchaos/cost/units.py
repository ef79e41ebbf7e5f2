"""Time as whole microseconds and money as whole nanodollars, so that sums are exact."""

from __future__ import annotations

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
DOLLAR_NANO = 1_000_000_000


def us(seconds: float) -> int:
    """Return seconds as whole microseconds."""
    return round(seconds * SECOND_US)


def seconds(microseconds: float) -> float:
    """Return microseconds as seconds."""
    return microseconds / SECOND_US


def hours(microseconds: float) -> float:
    """Return microseconds as hours."""
    return microseconds / HOUR_US


def nano(dollars: float) -> int:
    """Return dollars as whole nanodollars."""
    return round(dollars * DOLLAR_NANO)


def dollars(nanodollars: float) -> float:
    """Return nanodollars as dollars."""
    return nanodollars / DOLLAR_NANO
