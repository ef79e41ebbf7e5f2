"""Try again, a bounded number of times, at random moments that spread out."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from spotchaos.clock import Clock, SystemClock
from spotchaos.errors import StoreError

T = TypeVar("T")

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 10.0


class TransientError(StoreError):
    """It may work when it is tried again."""


class Retry:
    """Calls until it works or `tries` are used up.

    Waits are drawn between 0 and a bound that doubles ("full jitter"), so that many
    machines that failed together do not come back together.

    Source: AWS Architecture Blog, "Exponential Backoff And Jitter".

    Args:
        tries: how often in all, 1 or more.
        clock: waits.
        rng: draws the waits.
    """

    def __init__(
        self, *, tries: int = 6, clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:  # fmt: skip
        self.tries = tries
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()

    def __call__(self, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns.

        Raises:
            StoreError: it raised something that is not transient, or the last try failed.
        """
        for number in range(1, self.tries):
            try:
                return attempt()
            except TransientError:
                bound_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**number)
                self._clock.sleep(bound_s * self._rng.random())
        try:
            return attempt()
        except TransientError as error:
            raise StoreError(
                f"{error.message} ({self.tries} tries)", hint=error.hint
            ) from error
