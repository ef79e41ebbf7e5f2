"""`torch.distributed.checkpoint`: save, async_save and load of a folder."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

from spotchaos.probe.checkpoint_io import SAVES
from spotchaos.probe.session import SESSION
from spotchaos.probe.writers import target_of

if TYPE_CHECKING:
    from typing import Any


def hook_distributed_checkpoint(module: Any) -> None:
    """Follow the functions in the package and in the modules that define them."""
    saver = sys.modules.get("torch.distributed.checkpoint.state_dict_saver")
    loader = sys.modules.get("torch.distributed.checkpoint.state_dict_loader")
    for name in ("save", "async_save", "save_state_dict"):
        _follow(name, (module, saver), saves=True)
    for name in ("load", "load_state_dict"):
        _follow(name, (module, loader), saves=False)


def _follow(name: str, modules: tuple[Any, ...], *, saves: bool) -> None:
    original = getattr(modules[0], name, None)
    if original is None:
        return

    @functools.wraps(original)
    def followed(*args: Any, **kwargs: Any) -> Any:
        if SAVES.is_nested() or not SESSION.may_train():
            return original(*args, **kwargs)
        folder = _folder(args, kwargs)
        if saves:
            SAVES.begin(f"dcp.{name}")
            SAVES.claim(folder)
        elif folder is not None:
            SAVES.load_begins(folder, "dcp")
        SAVES.enter()
        try:
            result = original(*args, **kwargs)
        finally:
            SAVES.leave()
        if not saves and folder is not None:
            SESSION.site("load-end")
        return result

    for module in modules:
        if getattr(module, name, None) is original:
            setattr(module, name, followed)


def _folder(args: Any, kwargs: Any) -> str | None:
    """Return the folder that is named outright, or by the reader that was passed."""
    for value in (kwargs.get("checkpoint_id"), *args[1:]):
        if value is not None and not isinstance(value, dict) and target_of(value):
            return target_of(value)
    readers = (kwargs.get("storage_reader"), kwargs.get("storage_writer"), *args)
    for reader in readers:
        path = getattr(reader, "path", None)
        if path is not None and target_of(path):
            return target_of(path)
    return None
