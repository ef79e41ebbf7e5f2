"""Learning of every module with parameters, buffers or children, and of loads into one."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from spotchaos.probe.averages import AVERAGES
from spotchaos.probe.checkpoint_io import SAVES
from spotchaos.probe.session import SESSION
from spotchaos.probe.structure import LIVING

if TYPE_CHECKING:
    from typing import Any


def hook_modules(torch: Any) -> None:
    """Follow registrations, and copies and unpickled modules, which register nothing."""
    module = torch.nn.modules.module

    def seen(owner: Any, _name: str, _value: Any) -> None:
        LIVING.see_module(owner)

    module.register_module_parameter_registration_hook(seen)
    module.register_module_buffer_registration_hook(seen)
    module.register_module_module_registration_hook(seen)
    original = module.Module.__setstate__

    @functools.wraps(original)
    def __setstate__(self: Any, state: Any) -> None:  # noqa: N807 - it takes its place
        original(self, state)
        LIVING.see_module(self)
        AVERAGES.see_copy(self, is_late=SESSION.steps > 0, is_read=SAVES.is_nested())

    module.Module.__setstate__ = __setstate__
    loads = module.Module.load_state_dict

    @functools.wraps(loads)
    def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        SAVES.loads_into(self)
        return loads(self, *args, **kwargs)

    module.Module.load_state_dict = load_state_dict
