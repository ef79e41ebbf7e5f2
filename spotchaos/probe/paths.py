"""Which files matter: below the program's folder, and not logs, pictures or code."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from spotchaos.probe.session import SESSION

if TYPE_CHECKING:
    from typing import Any

_NEVER = re.compile(
    r"/__pycache__/|/site-packages/|/\.git/|/wandb/|/mlruns/|/dist-packages/"
    r"|\.(egg|dist)-info/"
    r"|\.py[cdo]?$|\.so(\.|$)|\.lock$|\.prof$|^/proc/|^/sys/|^/dev/"
)
_LOG = re.compile(
    r"\.(log|csv|tsv|txt|out|err|md|html?|png|jpe?g|svg|pdf|gif|mp4|jsonl|ya?ml|toml|ini|cfg)"
    r"(\.\d+)?$|tfevents|(^|[/._-])(log|logs|metrics|history|progress|results|events)([/._-]|$)",
    re.IGNORECASE,
)
_CHECKPOINT_SUFFIX = re.compile(
    r"\.(pt|pth|ckpt|bin|pkl|pickle|npz|npy|safetensors|msgpack|h5|hdf5|tar|distcp|joblib"
    r"|state|model|chk|dat|params|weights|zip|tgz|th|t7|mdl|dill|keras)"
    r"(\.(gz|bz2|xz|zst|lz4))?(\.(tmp|temp|new|part)[^/]*)?$",
    re.IGNORECASE,
)
_CHECKPOINT_NAME = re.compile(
    r"(ckpt|checkpoint|snapshot|resume|(^|[/._-])(state|latest|last|best|model|weights)([/._-]|$))",
    re.IGNORECASE,
)

_INSTALLED = re.compile(r"site-packages|dist-packages|/lib(64)?/python\d")


def is_installed(file: str) -> bool:
    """Tell whether a module's file came with Python or was installed: not the program's."""
    return _INSTALLED.search(file) is not None


def static_attribute(module: Any, name: str) -> Any:
    """Return what a module itself says under a name; None if it says nothing.

    Its `__getattr__` is not asked: a lazy module would be imported by that, or fail.
    """
    try:
        held = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return None
    return held.get(name)


def absolute(path: Any) -> str | None:
    """Return the absolute path of what was given to open; None if it is no path."""
    try:
        path = os.fspath(path)
    except TypeError:
        return None
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not isinstance(path, str) or not path:
        return None
    return os.path.abspath(path)


def inside(path: str) -> str | None:
    """Return `path` relative to the program's folder; None if it is not below it.

    What lies in the folder for output begins with `{out}/`.
    """
    for order, prefix in (("out", "{out}/"), ("folder", "")):
        folder = SESSION.orders[order]
        for base in {folder, os.path.realpath(folder)} if folder else ():
            if path.startswith(base.rstrip("/") + "/"):
                return prefix + path[len(base.rstrip("/")) + 1 :]
    return None


def shown(path: str) -> str:
    """Return the path as marks have it: relative below the folder, else absolute."""
    return inside(path) or path


def is_ours(path: str) -> bool:
    """Whether the path lies in the trace folder."""
    trace = SESSION.orders["trace"]
    return bool(trace) and path.startswith(trace)


def matters(path: str) -> bool:
    """Whether a file below the folder may be data of the program."""
    return not is_ours(path) and inside(path) is not None and not _NEVER.search(path)


def is_log(path: str) -> bool:
    """Whether the name says that it is a log, a picture or text for people."""
    return _LOG.search(inside(path) or path) is not None


def looks_like_checkpoint(path: str) -> bool:
    """Whether its name alone says that writing this file is saving.

    Writers that are known announce themselves. Of a file that the program opens itself
    only the name is known, and one that is rewritten each step must not make each step a
    save: so the name must say it.
    """
    name = inside(path) or path
    if is_log(path):
        return False
    return bool(
        _CHECKPOINT_SUFFIX.search(name)
        or _CHECKPOINT_NAME.search(os.path.basename(name))
    )
