"""Whether something is going on inside which module calls are no forwards of their own."""

from __future__ import annotations


class AttemptController:
    """One flag for all threads: what other threads do meanwhile belongs to it."""

    def __init__(self) -> None:
        self.is_busy = False


COURSE = AttemptController()
