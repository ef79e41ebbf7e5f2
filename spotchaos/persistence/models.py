"""Persistence models: what a crash may lose, reorder or tear, as sets of parameters.

Source: Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014; ext4(5) for
`data=ordered`, delayed allocation and `auto_da_alloc`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How much of a file's unsynced bytes has persisted."""

    ALL = "a"
    NONE = "0"
    HALF = "h"
    LAST_BLOCK_MISSING = "l"
    ZEROS = "z"  # the full size, but zeros where unsynced bytes should be
    FIRST_WRITE_MISSING = "f"
    MIDDLE_BLOCK_MISSING = "m"  # zeros amid the longest unsynced write


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistenceModel:
    """What one kind of crash does to ops that nobody has made durable.

    Attributes:
        name: as the command line spells it.
        letter: as state tokens spell it.
        severity: which model's states are the simplest, from 0.
        is_power_loss: unsynced ops may be lost; otherwise all ops before the crash
            have happened and only the one in flight can be torn.
        journal: changes of names and truncations persist in their order, and any fsync
            commits all earlier ones; otherwise each persists on its own.
        rename_forces_data: a rename over an existing name makes the bytes of the
            renamed file durable first.
        levels: besides ALL, what may be left of unsynced bytes.
    """

    name: str
    letter: str
    severity: int
    is_power_loss: bool
    journal: bool = False
    rename_forces_data: bool = False
    levels: tuple[Level, ...] = ()


KILL = PersistenceModel(name="kill", letter="K", severity=0, is_power_loss=False)
EXT4 = PersistenceModel(
    name="ext4",
    letter="E",
    severity=1,
    is_power_loss=True,
    journal=True,
    rename_forces_data=True,
    levels=(Level.NONE, Level.HALF, Level.LAST_BLOCK_MISSING),
)
POSIX = PersistenceModel(
    name="posix",
    letter="S",
    severity=2,
    is_power_loss=True,
    levels=(
        Level.NONE,
        Level.HALF,
        Level.LAST_BLOCK_MISSING,
        Level.ZEROS,
        Level.FIRST_WRITE_MISSING,
        Level.MIDDLE_BLOCK_MISSING,
    ),
)
MODELS = {model.name: model for model in (KILL, EXT4, POSIX)}
BY_LETTER = {model.letter: model for model in MODELS.values()}
