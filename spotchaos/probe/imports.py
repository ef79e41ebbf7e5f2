"""Running a hook right after the program imports a module, and never importing it for it.

The finder comes first on `sys.meta_path`, asks the others for the module, and puts an
`exec_module` of its own on the loader they found. What the program sees afterwards is
the loader as it was.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from spotchaos.probe.session import SESSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Hook = Callable[[Any], None]


class Finder:
    """Runs hooks after the modules they are for.

    Args:
        hooks: module name -> what to call with the module once it is executed.
    """

    def __init__(self, hooks: Mapping[str, Sequence[Hook]]) -> None:
        self._hooks = dict(hooks)
        self._busy: set[str] = set()

    def install(self) -> None:
        """Begin to watch; modules that are there already get their hooks now."""
        sys.meta_path.insert(0, self)
        for name in list(self._hooks):
            if name in sys.modules:
                self._run(name, sys.modules[name])

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._hooks or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = self._found_by_others(name, path, target)
        finally:
            self._busy.discard(name)
        loader = getattr(spec, "loader", None)
        if loader is not None and hasattr(loader, "exec_module"):
            self._arm(name, loader)
        return spec

    def _found_by_others(self, name: str, path: Any, target: Any) -> Any:
        for finder in list(sys.meta_path):
            if finder is self:
                continue
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None

    def _arm(self, name: str, loader: Any) -> None:
        original = loader.exec_module

        def exec_module(module: Any) -> None:
            vars(loader).pop("exec_module", None)
            original(module)
            self._run(name, module)

        try:
            loader.exec_module = exec_module
        except AttributeError as error:
            SESSION.trouble(f"import of {name}", error)

    def _run(self, name: str, module: Any) -> None:
        for hook in self._hooks.pop(name, ()):
            try:
                hook(module)
            except Exception as error:
                SESSION.trouble(f"hook {hook.__name__} on {name}", error)
