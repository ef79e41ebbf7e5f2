"""Hold a program still after a given step, so that a test can kill it there.

This is a referee that shares no code with the probe: it knows torch's optimizer hooks and
nothing else. HALT_AFTER is the step, 0 for never; HALT_FOLDER takes one file per rank at
the halt, and one per process at the exit with the number of times that the hook fired.
"""

import atexit
import importlib.machinery
import os
import signal
import sys
from pathlib import Path


class WatchTorch:
    """Lets torch load as ever, then hangs the counting hooks on it."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def load_and_hook(module):
            load(module)
            hook()

        spec.loader.exec_module = load_and_hook
        return spec


def hook():
    from torch.optim import optimizer as torch_optimizer

    folder, after = Path(os.environ["HALT_FOLDER"]), int(os.environ["HALT_AFTER"])
    owner, fired, depth, rounds = os.getpid(), 0, 0, {}

    def before(optimizer, args, kwargs):
        nonlocal fired, depth
        fired += 1
        depth += 1

    def behind(optimizer, args, kwargs):
        nonlocal depth
        depth -= 1
        if depth or os.getpid() != owner or is_phantom():
            return
        # With several optimizers a step is one round of the one with most parameters.
        size = sum(p.numel() for g in optimizer.param_groups for p in g["params"])
        rounds[size] = rounds.get(size, 0) + 1
        if after and size == max(rounds) and rounds[size] == after:
            rank = os.environ.get("RANK", "0")
            (folder / f"halted-{rank}").write_text(str(owner))
            os.kill(owner, signal.SIGSTOP)

    torch_optimizer.register_optimizer_step_pre_hook(before)
    torch_optimizer.register_optimizer_step_post_hook(behind)

    def emit():
        if os.getpid() == owner and fired:
            (folder / f"fired-{owner}").write_text(str(fired))

    atexit.register(emit)


def is_phantom():
    """Say whether torch.distributed.checkpoint makes the step to create empty state."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.endswith("distributed/checkpoint/state_dict.py"):
            return True
        frame = frame.f_back
    return False


if "HALT_FOLDER" in os.environ:
    sys.meta_path.insert(0, WatchTorch())
