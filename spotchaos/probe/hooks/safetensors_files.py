"""Files of safetensors, which are written and read past Python's own `open`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotchaos.probe.writers import follow_reader, follow_writer

if TYPE_CHECKING:
    from typing import Any


def hook_safetensors(module: Any) -> None:
    """Follow the functions of `safetensors.torch`, or `safe_open` of the package."""
    if module.__name__ == "safetensors.torch":
        follow_writer(
            (module,),
            "save_file",
            place=1,
            keyword="filename",
            writer="safetensors",
            content="tensors",
        )
        follow_reader(
            (module,), "load_file", place=0, keyword="filename", via="safetensors"
        )
    else:
        # A class used as a context manager: calling the function makes an instance.
        follow_reader(
            (module,), "safe_open", place=0, keyword="filename", via="safetensors"
        )
