"""Where the probe takes hold of the program: module name -> what to do once it is imported.

To watch another module, add a file here and a line to `HOOKS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotchaos.probe.hooks.backward import hook_backward
from spotchaos.probe.hooks.data import hook_loader
from spotchaos.probe.hooks.distributed_checkpoint import hook_distributed_checkpoint
from spotchaos.probe.hooks.dynamo import hook_dynamo
from spotchaos.probe.hooks.forward import hook_forward
from spotchaos.probe.hooks.hdf5_files import hook_hdf5
from spotchaos.probe.hooks.modules import hook_modules
from spotchaos.probe.hooks.numpy_files import hook_numpy_files
from spotchaos.probe.hooks.optimizer import hook_optimizer
from spotchaos.probe.hooks.own_package import hook_own_package
from spotchaos.probe.hooks.pickle_files import hook_pickle_files
from spotchaos.probe.hooks.safetensors_files import hook_safetensors
from spotchaos.probe.hooks.scaler import hook_scaler
from spotchaos.probe.hooks.schedulers import hook_schedulers
from spotchaos.probe.hooks.seeding import seed_numpy, seed_random, settle_torch
from spotchaos.probe.hooks.torch_files import hook_torch_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

HOOKS: Mapping[str, tuple[Callable[[Any], None], ...]] = {
    "spotchaos": (hook_own_package,),
    "random": (seed_random,),
    "numpy": (seed_numpy, hook_numpy_files),
    "pickle": (hook_pickle_files,),
    "torch": (
        settle_torch,
        hook_modules,
        hook_forward,
        hook_backward,
        hook_optimizer,
        hook_schedulers,
        hook_scaler,
        hook_loader,
        hook_torch_files,
    ),
    "torch._dynamo.trace_rules": (hook_dynamo,),
    "torch.distributed.checkpoint": (hook_distributed_checkpoint,),
    "safetensors.torch": (hook_safetensors,),
    "safetensors": (hook_safetensors,),
    "h5py": (hook_hdf5,),
}
