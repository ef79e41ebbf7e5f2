"""`pickle.dump` and `pickle.load` on files with a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotchaos.probe.writers import follow_reader, follow_writer

if TYPE_CHECKING:
    from typing import Any


def hook_pickle_files(pickle: Any) -> None:
    """Follow both; pickles in memory are no saves."""
    follow_writer((pickle,), "dump", place=1, keyword="file", writer="pickle")
    follow_reader((pickle,), "load", place=0, keyword="file", via="pickle")
