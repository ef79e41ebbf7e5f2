"""How often a program asks whether its machine is about to end, and how long to wait for it.

A notice that is played in compressed time may pass between two requests of a program that
asks rightly, every few seconds or twice a minute. So the training is held until it asks:
for one of its pauses where they are known, once in a campaign for long where nothing is.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from spotchaos.providers.service import Entry

RECENT = 20  # requests that tell how often the program asks
# AWS advises to ask every five seconds.
PATIENCE_S = 6.0
POLLS_TO_WAIT = 1.2
# Of a program that has not asked yet nobody knows whether it ever will: its first pause
# may be longer than the whole run, which is a short one where it is tested.
FIRST_PATIENCE_S = 30.0
# Who has asked once asks again; once a minute is all that two minutes of notice allow.
LONGEST_PATIENCE_S = 75.0
# What is in the paths that tell of the end; others are asked for at the start, once.
_OF_THE_END = (
    "spot/",
    "termination",
    "events",
    "lifecycle",
    "preempted",
    "maintenance",
    "recursive",
)


class Polls:
    """What a campaign has learnt of its program; attempts may end in several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pauses_s: list[float] = []
        self._is_silent = False

    def note(self, asked_s: Sequence[float], *, from_s: float | None) -> None:
        """Learn from an attempt that was left alone.

        Args:
            asked_s: when it asked whether the end is near, in order.
            from_s: when its first step was complete; None: it trained nothing. What is
                asked before says nothing of pauses in the training.
        """
        moments = [at_s for at_s in asked_s if from_s is None or at_s > from_s]
        if from_s is not None and moments:
            moments.insert(0, from_s)
        with self._lock:
            self._pauses_s += [b - a for a, b in pairwise(moments)]

    def note_silence(self) -> None:
        """Learn that it never asked, although it was waited for as long as ever."""
        with self._lock:
            self._is_silent = True

    @property
    def usual_s(self) -> float:
        """The usual pause between two requests, or before the first; 0: unknown."""
        with self._lock:
            return statistics.median(self._pauses_s) if self._pauses_s else 0.0

    @property
    def is_silent(self) -> bool:
        """Whether nothing can be expected of waiting for long."""
        with self._lock:
            return self._is_silent


@dataclass(frozen=True, slots=True)
class Heard:
    """What one attempt has asked so far.

    `pause_s` is the longest between recent requests for one item; 0: unknown.
    """

    pause_s: float = 0.0
    has_asked: bool = False  # whether the end is near

    @classmethod
    def of(cls, log: Sequence[Entry], now: datetime) -> Heard:
        """Read a service's log.

        Requests for several items come together, and say nothing of the pause after them.
        """
        asked = [entry for entry in log[-RECENT:] if not entry.gave_token]
        moments: dict[str, list[datetime]] = {}
        for entry in asked:
            moments.setdefault(_item(entry), []).append(entry.at)
        pauses = [b - a for times in moments.values() for a, b in pairwise(times)]
        has_asked = any(tells_of_the_end(entry) for entry in asked)
        if not pauses:
            return cls(0.0, has_asked)
        # Tries that follow one another at once are one poll: the pause goes on.
        longest = max(*pauses, now - asked[-1].at)
        return cls(longest.total_seconds(), has_asked)


def patience_s(heard: Heard, polls: Polls, *, tries: int = 1) -> float:
    """Return how long to wait for a program's next request, in seconds.

    Args:
        heard: what this attempt has asked.
        polls: what is known from earlier ones.
        tries: how many requests may be needed: who is refused renews its token, and asks
            again after its pause.
    """
    pause_s = heard.pause_s or polls.usual_s
    if not pause_s and heard.has_asked:
        return LONGEST_PATIENCE_S
    if not pause_s and not polls.is_silent:
        return FIRST_PATIENCE_S
    return min(max(PATIENCE_S, POLLS_TO_WAIT * pause_s) * tries, LONGEST_PATIENCE_S)


def tells_of_the_end(entry: Entry) -> bool:
    """Tell whether a request wants to know if the machine is about to end."""
    return entry.method == "GET" and any(word in entry.path for word in _OF_THE_END)


def moments_of(log: Iterable[Entry]) -> list[datetime]:
    """Return when it was asked whether the end is near, requests at once as one."""
    moments: dict[str, list[datetime]] = {}
    for entry in log:
        if tells_of_the_end(entry):
            moments.setdefault(_item(entry), []).append(entry.at)
    return max(moments.values(), key=len, default=[])


def _item(entry: Entry) -> str:
    return entry.path.partition("?")[0]
