"""`h5py.File`, which opens its file in C, where Python's audit hook sees nothing."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

_FLAGS = {
    "r": os.O_RDONLY,
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "w-": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
}


def hook_hdf5(h5py: Any) -> None:
    """Announce what it opens as Python announces what is opened by `open`."""
    original = h5py.File.__init__

    @functools.wraps(original)
    def begun(self: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
        flags = _FLAGS.get(mode)
        if flags is not None and isinstance(name, (str, bytes, os.PathLike)):
            sys.audit("open", os.fspath(name), None, flags)
        original(self, name, mode, *args, **kwargs)

    h5py.File.__init__ = begun
