"""Every exception that spotchaos raises on purpose.

    SpotchaosError
    ├── UsageError           the caller asked for something that cannot be
    │   ├── PlanError        a kill point or plan that no run can reach
    │   ├── ReportError      a report file that is unreadable or of another schema
    │   └── ScenarioError    a scenario file that does not say what it must
    ├── ProgramError         the training program broke on its own, uninterrupted
    ├── CheckpointError      a checkpoint of the reference core that must not be used
    │   └── StoreError       the place where checkpoints live refused or failed
    └── HarnessError         spotchaos could not do its part; the verdict is unknown

A violated property is not an exception: it is a `Finding`, and findings are returned.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SpotchaosError(Exception):
    """Base of the tree, for callers who catch everything of ours.

    Args:
        message: what is wrong and where, in one sentence, with the value that was given.
        hint: what the reader can do about it, as an order; left out where we do not know.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        if self.hint is None:
            return self.message
        return f"{self.message}\nHint: {self.hint}"


# Of a printed message or hint, in characters.
LONGEST = 300


class UsageError(SpotchaosError):
    """The caller asked for something that cannot be; the command exits with 2."""

    @property
    def shown(self) -> tuple[str, str | None]:
        """Message and hint as they are printed; what they quote may be of any length."""
        hint = None if self.hint is None else shortened(self.hint, LONGEST)
        return shortened(self.message, LONGEST), hint


class PlanError(UsageError):
    """A kill point or plan that no run can reach."""


class ReportError(UsageError):
    """A report file that is unreadable, or of a schema that this release cannot read."""


class ScenarioError(UsageError):
    """A scenario file that does not say what it must."""


class ProgramError(SpotchaosError):
    """The training program broke on its own, without any interruption."""


class CheckpointError(SpotchaosError):
    """A checkpoint that must not be used: torn, foreign, of a newer release or shape."""


class StoreError(CheckpointError):
    """The place where checkpoints live refused, failed, or is not there."""


class HarnessError(SpotchaosError):
    """Spotchaos could not do its part; the verdict is `unknown`, never a finding."""


def shortened(text: str, most: int) -> str:
    """Return `text` in at most `most` printable characters, with its middle left out."""
    if len(text) > most:
        head = most * 2 // 3
        text = f"{text[:head]} ... {text[len(text) - (most - head - 5) :]}"
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return "did you mean 'x'?" for the nearest of `known`, or None if none is near."""
    # Its time grows with the square of a name's length, and nothing of ours is long.
    near = difflib.get_close_matches(
        str(name)[:80], [str(k) for k in known], n=1, cutoff=0.6
    )
    return f"did you mean {near[0]!r}?" if near else None
