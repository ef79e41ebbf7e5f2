"""What one process knows of its attempt: orders, role, rank, sites counted, kill point.

There is one session a process, `SESSION`. A process is "main" if it may train. Forked
children and those of `multiprocessing` are quiet: most are loader workers, and one that
begins to train is promoted then. Helpers stay out of everything.
"""

from __future__ import annotations

import json
import os
import sys
from time import sleep  # noqa: TID251  it is the program that waits
from typing import TYPE_CHECKING

from spotchaos.probe.halt import Harness
from spotchaos.probe.record import Record
from spotchaos.probe.shield import is_of_handler, shielded
from spotchaos.trace.format import ORDERS, PROBE_SITES, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Sites that every step reaches have no mark of their own: the step has one.
_FREQUENT = frozenset(("fetch", "forward", "backward", "optimizer-step", "step-end"))

# Where a slow rank waits.
_SLOW_AT = frozenset(("step-end", "save-begin"))

_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


class Session:
    """The state of the probe in this process."""

    def __init__(self) -> None:
        self.orders: dict[str, Any] = dict(ORDERS)
        self.role = "helper"
        self.record: Record | None = None
        self.harness = Harness(None)
        self.counts: dict[str, int] = dict.fromkeys(PROBE_SITES, 0)
        self.steps = 0
        self.is_child = False  # forked from a process of the program's own
        self.troubles = 0
        self.torch: dict[str, Any] = {}  # its mark, kept while the process is quiet
        self.at_promotion: list[Callable[[], None]] = []
        self._hello: tuple[int, int, str] | None = None
        self._kill: tuple[str, int, int | None] | None = None
        self._slow: tuple[int, float] | None = None  # rank, seconds
        self._then: list[tuple[str, int, int | None]] = []
        self._since: dict[str, int] = {}  # sites reached since the first signal

    def begin(self, path: str) -> bool:
        """Take the orders in the file `path`; False if they say to stay out."""
        with open(path, encoding="utf-8") as file:
            given = json.load(file)
        self.orders = {**ORDERS, **given}
        if not self.orders["trace"]:
            return False
        self.record = Record(self.orders["trace"])
        self.harness = Harness(self.orders["socket"])
        self._kill = parsed_kill(self.orders["kill"])
        self._slow = self.orders["slow"] and tuple(self.orders["slow"])
        self._then = [p for p in map(parsed_kill, self.orders["then"]) if p]
        self.role = role_of(command_line())
        self.is_child = False
        self.say_hello()
        return True

    @property
    def fingerprint(self) -> str:
        return str(self.orders["fingerprint"])

    def may_train(self) -> bool:
        """Return whether events of training count here; promotes a quiet process."""
        if self.role == "main":
            return True
        if self.role == "helper" or self.record is None:
            return False
        workers = sys.modules.get("torch.utils.data._utils.worker")
        if workers is not None and workers._worker_info is not None:
            self.role = "helper"
            return False
        self.role = "main"
        self.say_hello()
        if self.torch:
            self.mark("torch", **self.torch)
        for action in self.at_promotion:
            action()
        return True

    def rank(self) -> tuple[int, int]:
        """Return (rank, world size), as far as known by now."""
        for rank, size in _RANK_VARIABLES:
            if (
                os.environ.get(rank, "").isdigit()
                and os.environ.get(size, "").isdigit()
            ):
                return int(os.environ[rank]), int(os.environ[size])
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available():
            try:
                if distributed.is_initialized():
                    return distributed.get_rank(), distributed.get_world_size()
            except (AttributeError, RuntimeError, ValueError):
                pass
        return 0, 1

    def say_hello(self) -> None:
        """Write and send who this is; again if the rank turns out to be another."""
        assert self.record is not None
        rank, size = self.rank()
        said = (rank, size, self.role)
        if self._hello == said:
            return
        self._hello = said
        mark = self.record.write(
            "hello",
            schema=SCHEMA,
            pid=os.getpid(),
            ppid=os.getppid(),
            rank=rank,
            local_rank=int(os.environ.get("LOCAL_RANK") or 0),
            world_size=size,
            argv=command_line(),
            executable=sys.executable,
            python=".".join(str(part) for part in sys.version_info[:3]),
            role="main" if self.role == "main" else "helper",
        )
        if self.role == "main":
            self.harness.say({"hello": mark})

    def mark(self, kind: str, **values: Any) -> None:
        """Append a mark, unless this process stays out."""
        if self.record is not None and self.role != "helper":
            self.record.write(kind, **values)

    def trouble(self, where: str, error: BaseException) -> None:
        """Note that the probe itself failed; the program goes on, and so does the probe.

        Raises:
            BaseException: `error` itself, if a signal handler of the program raised it
                while our code ran.
        """
        if is_of_handler(error):
            raise error
        self.troubles += 1
        if self.troubles <= 20:
            self.mark("note", name="probe-trouble", message=f"{where}: {error!r}")

    def site(self, name: str) -> None:
        """Count that `name` was reached, and halt if it is the kill point."""
        if self.record is None or self.role != "main":
            return
        if self._slow is not None:
            self._fall_behind(name, *self._slow)
        count = self.counts[name] = self.counts[name] + 1
        self.record.count_site(name, count)
        if name not in _FREQUENT or self.orders["mark_every_site"]:
            self.record.write("site", site=name, n=count, step=self.steps)
        if self._then:
            self._follow_up(name)
        kill = self._kill
        if kill is None or kill[0] != name or kill[1] != count:
            return
        rank = self.rank()[0]
        if kill[2] is None or kill[2] == rank:
            self._halt(f"{name}:{count}", rank)

    def _fall_behind(self, name: str, rank: int, wait_s: float) -> None:
        """Wait before a step ends or a save begins, on the rank that is to be slow."""
        if name in _SLOW_AT and self.rank()[0] == rank:
            sleep(wait_s)

    def _follow_up(self, name: str) -> None:
        """Halt where another signal is to follow the first one.

        The harness says so in the page before it sends the first: a handler may get here
        before the process could read any message.
        """
        assert self.record is not None
        if not self._since and not self.record.is_injected():
            return
        count = self._since[name] = self._since.get(name, 0) + 1
        rank = self.rank()[0]
        for site, n, at_rank in self._then:
            if site == name and n == count and at_rank in (None, rank):
                only = "" if at_rank is None else f"@{at_rank}"
                self.record.set_halted(halted=True)
                try:
                    # A kill point of this attempt that is still to come stays.
                    self.harness.hold(
                        f"+{name}:{count}{only}", rank=rank, step=self.steps
                    )
                finally:
                    self.record.set_halted(halted=False)
                return

    def _halt(self, point: str, rank: int) -> None:
        assert self.record is not None
        self._kill = None
        self.record.set_halted(halted=True)
        try:
            self.harness.hold(point, rank=rank, step=self.steps)
        finally:
            self.record.set_halted(halted=False)
            if self.harness.new_kill is not None:
                self._kill = parsed_kill(self.harness.new_kill)
                self.harness.new_kill = None

    def become_child(self) -> None:
        """Start afresh and quiet: called in a forked child."""
        if self.record is None:
            return
        self.record.forget()
        self.harness.forget()
        self.harness = Harness(self.orders["socket"])
        if self.role == "main":
            self.role = "quiet"
        self.counts = dict.fromkeys(PROBE_SITES, 0)
        self._since.clear()
        self.steps = 0
        self.is_child = True
        self._hello = None


def parsed_kill(written: Any) -> tuple[str, int, int | None] | None:
    """Return (site, occurrence, rank or None) of "SITE:N" or "SITE:N@R"."""
    site, _, rest = str(written or "").partition(":")
    count, _, rank = rest.partition("@")
    if not count.isdigit():
        return None
    return site, int(count), int(rank) if rank.isdigit() else None


# A process forked from a zygote says here which command it stands for.
COMMAND: list[str] = []


def command_line() -> list[str]:
    """Return this process's command line; `sys.argv` is not there yet at start-up."""
    if COMMAND:
        return COMMAND
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [
                part.decode(errors="replace") for part in file.read().split(b"\0")[:-1]
            ]
    except OSError:
        return list(getattr(sys, "orig_argv", getattr(sys, "argv", [])))


_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_HELPERS = ("multiprocessing.resource_tracker", "torch._inductor.compile_worker")
_QUIET = ("multiprocessing.spawn", "multiprocessing.forkserver")


def role_of(command: list[str]) -> str:
    """Return "main", "quiet" (may begin to train later) or "helper" (never will)."""
    # Past the script's name come the program's own arguments, which may say anything.
    words = command[:3]
    if any(os.path.basename(word) in _LAUNCHERS for word in words):
        return "helper"
    joined = " ".join(command[1:4])
    if any(name in joined for name in _HELPERS):
        return "helper"
    return "quiet" if any(name in joined for name in _QUIET) else "main"


SESSION = Session()

# For functions that the program calls without knowing: they never break it.
shield = shielded(SESSION.trouble)
