"""`torch.save` and `torch.load`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotchaos.probe.writers import follow_reader, follow_writer

if TYPE_CHECKING:
    from typing import Any


def hook_torch_files(torch: Any) -> None:
    """Follow both where they are defined, and where the program finds them."""
    serialization = torch.serialization
    follow_writer(
        (torch, serialization),
        "save",
        place=1,
        keyword="f",
        writer="torch.save",
        in_memory=True,
    )
    follow_reader(
        (torch, serialization),
        "load",
        place=0,
        keyword="f",
        via="torch.load",
        in_memory=True,
    )
