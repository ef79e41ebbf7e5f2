"""What the orders set from outside: seeds, thread count, deterministic algorithms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotchaos.probe.fingerprint import ALGORITHM
from spotchaos.probe.session import SESSION

if TYPE_CHECKING:
    from typing import Any


def settle_torch(torch: Any) -> None:
    """Apply the orders to torch, and say which torch it is."""
    orders = SESSION.orders
    if SESSION.role != "helper" and orders["threads"]:
        torch.set_num_threads(int(orders["threads"]))
    if orders["deterministic"]:
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        torch.backends.cudnn.benchmark = False
    if orders["seed_program"] is not None:
        torch.manual_seed(int(orders["seed_program"]))
    SESSION.torch = {
        "version": str(torch.__version__),
        "algorithm": ALGORITHM.choose(orders["algorithm"]),
        "threads": torch.get_num_threads(),
    }
    if SESSION.role == "main":
        SESSION.mark("torch", **SESSION.torch)


def seed_random(random: Any) -> None:
    """Seed Python's own stream, if the orders say so."""
    if SESSION.orders["seed_program"] is not None:
        random.seed(int(SESSION.orders["seed_program"]))


def seed_numpy(numpy: Any) -> None:
    """Seed numpy's global stream, if the orders say so."""
    if SESSION.orders["seed_program"] is not None:
        numpy.random.seed(int(SESSION.orders["seed_program"]) % 2**32)
