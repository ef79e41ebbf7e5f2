"""Following functions that write or read checkpoints, by replacing them where they live."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from spotchaos.probe.checkpoint_io import SAVES
from spotchaos.probe.session import SESSION

if TYPE_CHECKING:
    from typing import Any


def follow_writer(
    modules: tuple[Any, ...],
    name: str,
    *,
    place: int,
    keyword: str,
    writer: str,
    content: str = "obj",
    in_memory: bool = False,
) -> None:
    """Replace `name` in `modules` by a function that announces the save.

    Args:
        modules: the ones that carry it; the first that has it says what it is.
        name: of the function.
        place: of the path among the positional arguments.
        keyword: of the path.
        writer: what a save's mark calls it.
        content: keyword of what is written, the first argument.
        in_memory: it is a save as well where it goes to no file, but to an archive, a
            buffer or an object store.
    """
    original = _original(modules, name)
    if original is None:
        return

    @functools.wraps(original)
    def followed(*args: Any, **kwargs: Any) -> Any:
        target = _argument(args, kwargs, place, keyword)
        path = target_of(target)
        if not SESSION.may_train() or (
            path is None and not (in_memory and SAVES.may_be_in_memory())
        ):
            if in_memory and path is None and SESSION.may_train():
                SAVES.went_nowhere(
                    writer, SAVES.held_by(_argument(args, kwargs, 0, content))
                )
            return original(*args, **kwargs)
        held = SAVES.held_by(_argument(args, kwargs, 0, content))
        if path is not None and (
            SAVES.is_late(path) or (SAVES.is_writing(path) and not _is_name(target))
        ):
            SAVES.note_held(held)  # it is of the save that has begun
        else:
            SAVES.begin(writer, held)
        SAVES.enter_writer()
        try:
            SAVES.wrote(path)
            return original(*args, **kwargs)
        finally:
            SAVES.leave_writer()

    _replace(modules, name, original, followed)


def follow_reader(
    modules: tuple[Any, ...],
    name: str,
    *,
    place: int,
    keyword: str,
    via: str,
    in_memory: bool = False,
) -> None:
    """Replace `name` in `modules` by a function that announces the load.

    Args:
        modules: the ones that carry it; the first that has it says what it is.
        name: of the function.
        place: of the path among the positional arguments.
        keyword: of the path.
        via: what a load's mark calls it.
        in_memory: it is a load as well where it is given what came from an object store.
    """
    original = _original(modules, name)
    if original is None:
        return

    @functools.wraps(original)
    def followed(*args: Any, **kwargs: Any) -> Any:
        path = target_of(_argument(args, kwargs, place, keyword))
        is_known = path is not None or (in_memory and SESSION.orders["store"])
        if not is_known or SAVES.is_nested() or not SESSION.may_train():
            return original(*args, **kwargs)
        SAVES.load_begins(path, via)
        SAVES.enter()
        try:
            result = original(*args, **kwargs)
        finally:
            SAVES.leave()
        SESSION.site("load-end")
        return result

    _replace(modules, name, original, followed)


def target_of(value: Any) -> str | None:
    """Return the path of a path or of an open file; None for one in memory."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, str):
        return value
    if hasattr(value, "__fspath__"):
        return str(value.__fspath__())
    # A file that fsspec or gzip wraps names the one beneath.
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else None


def _is_name(value: Any) -> bool:
    return isinstance(value, (str, bytes)) or hasattr(value, "__fspath__")


def _argument(args: Any, kwargs: Any, place: int, keyword: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(keyword)


def _original(modules: tuple[Any, ...], name: str) -> Any:
    for module in modules:
        found = getattr(module, name, None)
        if found is not None:
            return found
    return None


def _replace(modules: tuple[Any, ...], name: str, original: Any, followed: Any) -> None:
    for module in modules:
        if getattr(module, name, None) is original:
            setattr(module, name, followed)
