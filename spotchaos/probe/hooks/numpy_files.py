"""`numpy.save`, `savez`, `savez_compressed` and `load`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotchaos.probe.writers import follow_reader, follow_writer

if TYPE_CHECKING:
    from typing import Any


def hook_numpy_files(numpy: Any) -> None:
    """Follow the functions where programs find them."""
    for name in ("save", "savez", "savez_compressed"):
        follow_writer((numpy,), name, place=0, keyword="file", writer=f"numpy.{name}")
    follow_reader((numpy,), "load", place=0, keyword="file", via="numpy.load")
