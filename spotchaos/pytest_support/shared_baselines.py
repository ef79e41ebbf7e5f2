"""Groundwork that many campaigns of one session share: baselines are run once.

Scenarios try one program in many ways, and what they are compared with is the same each
time. It is laid again as soon as the program, its folder or anything that a run depends
on is another.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path

from spotchaos.campaign.baseline import (
    BaselineContext,
    BaselineFailed,
    Emit,
    prepare_baseline,
)
from spotchaos.clock import SystemClock
from spotchaos.config.settings import Settings
from spotchaos.errors import HarnessError
from spotchaos.launch.isolation.mechanisms import Mechanisms, find_mechanisms
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.isolation.workspace import Workspace
from spotchaos.launch.zygote.forkable import Start, start_of
from spotchaos.launch.zygote.zygote import Zygote, environment_for, raised_for
from spotchaos.trial.context import wanted_by

# What says how a trial goes or is judged, and nothing about a run that is left alone.
OF_TRIALS = frozenset(
    {
        "accept_refusal",
        "budget_s",
        "engine",
        "exit_code",
        "fail_on",
        "find_grace",
        "grace_s",
        "grace_steps",
        "jobs",
        "kill_at",
        "max_lost_steps",
        "notice",
        "promise",
        "seed",
        "shard",
        "signal",
        "time_scale",
        "to",
        "trials",
        "fault",
        "lose",
        "move",
        "durable",
        "netns",
    }
)
# A folder with more entries than this is not looked through, and nothing is shared.
MOST_ENTRIES = 20_000
# Each groundwork holds the files of a finished run, and a zygote.
MOST_KEPT = 6
# What small programs on torch import; a name that is not there is passed over. An
# optimizer's first step imports the compiler, which takes longer than torch itself.
OF_TORCH = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.nn.parallel.distributed",
    "torch.optim.swa_utils",
    "torch.utils.data",
    "numpy",
    "argparse",
)
# The trainer of this package, and what it imports besides.
REFERENCE = "spotchaos.training"
OF_REFERENCE = (
    *OF_TORCH,
    *(f"{REFERENCE}.{name}" for name in ("command", "keeper", "pollers", "trainer")),
    *(f"{REFERENCE}.{name}" for name in ("text", "transformer")),
)


@dataclass(slots=True)
class _Prepared:
    baseline_context: BaselineContext | None
    failed: BaselineFailed | None
    uses: int = 0
    resources: ExitStack = field(default_factory=ExitStack)


class SharedBaselines:
    """Lays groundwork, and hands it out again; use `layer` as a campaign's.

    Args:
        ready: folders whose programs are trusted to run in a process forked from one
            that has imported torch, also for their first baseline. Others prove that
            with a fresh run.
        ready_modules: names of modules that are trusted likewise, started by `-m`.
        vouches: nor is what such a process shows confirmed by fresh ones. The equality
            of both is shown elsewhere, by `tests/fast/test_equal_verdicts.py`.
    """

    def __init__(
        self,
        *,
        ready: Sequence[Path] = (),
        ready_modules: Sequence[str] = (),
        vouches: bool = False,
    ) -> None:
        self._ready = tuple(folder.resolve() for folder in ready)
        self._ready_modules = frozenset(ready_modules)
        self._prepared: OrderedDict[Hashable, _Prepared] = OrderedDict()
        self._vouches = vouches
        self._zygotes: dict[Hashable, Zygote] = {}
        self._mechanisms: Mechanisms | None = None

    def layer(
        self, settings: Settings, program: Program, emit: Emit
    ) -> BaselineContext:
        """Return groundwork for these settings: laid now, or for an equal run before.

        Raises:
            BaselineFailed: there is none to be laid; asking again costs no run.
            HarnessError: we could not do our part.
        """
        key = _key(settings)
        prepared = self._prepared.pop(key, None)
        if prepared is None:
            self._make_room()
            prepared = self._lay(settings, program, emit)
        self._prepared[key] = prepared
        prepared.uses += 1
        if prepared.failed is not None:
            raise prepared.failed
        assert prepared.baseline_context is not None
        return prepared.baseline_context

    def close(self) -> None:
        """Remove everything; safe to call twice."""
        while self._prepared:
            self._prepared.popitem()[1].resources.close()
        while self._zygotes:
            self._zygotes.popitem()[1].close()

    def _make_room(self) -> None:
        while len(self._prepared) >= MOST_KEPT:
            # What most scenarios try is kept, however many others come between.
            least = min(self._prepared, key=lambda key: self._prepared[key].uses)
            self._prepared.pop(least).resources.close()

    def _lay(self, settings: Settings, program: Program, emit: Emit) -> _Prepared:
        if self._mechanisms is None:
            self._mechanisms = find_mechanisms()
        prepared = _Prepared(None, None)
        with ExitStack() as resources:
            workspace = resources.enter_context(
                Workspace(
                    settings.folder,
                    mechanisms=self._mechanisms,
                    keep=settings.keep,
                    keep_env=settings.keep_env,
                )
            )
            zygote = self._zygote_for(program, workspace) if settings.warm else None
            try:
                prepared.baseline_context = prepare_baseline(
                    settings,
                    program,
                    workspace,
                    emit,
                    clock=SystemClock(),
                    zygote=zygote,
                )
            except BaselineFailed as failed:
                prepared.failed = failed
            else:
                raised = prepared.baseline_context.trial_context.zygote
                if raised is not None and raised is not zygote:
                    resources.callback(raised.close)
            prepared.resources = resources.pop_all()
        return prepared

    def _zygote_for(self, program: Program, workspace: Workspace) -> Zygote | None:
        """Return a zygote that has imported torch, for a program that is trusted to it."""
        start = start_of(program.command, program.environment, program.folder)
        if start is None or not self._is_ready(start, program.folder):
            return None
        view = workspace.view("zygote")
        try:
            environment = environment_for(program, view)
            changing = ("TMPDIR", "TEMP", "TMP", "HOSTNAME", "PYTEST_CURRENT_TEST")
            kept = {k: v for k, v in environment.items() if k not in changing}
            modules = OF_TORCH if start.module is None else OF_REFERENCE
            key = (start.interpreter, start.flags, modules, *sorted(kept.items()))
            if key not in self._zygotes:
                zygote = raised_for(program, start, workspace, modules)
                zygote.is_vouched_for = self._vouches
                self._zygotes[key] = zygote
        except HarnessError:
            return None
        finally:
            view.close()
        return self._zygotes[key]

    def _is_ready(self, start: Start, folder: Path) -> bool:
        if start.script is None:
            return start.module in self._ready_modules
        script = (folder / start.script).resolve()
        return any(script.is_relative_to(ready) for ready in self._ready)


def _key(settings: Settings) -> Hashable:
    """Return what an uninterrupted run depends on."""
    values = [
        (f.name, repr(getattr(settings, f.name)))
        for f in fields(settings)
        if f.name not in OF_TRIALS
    ]
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))
    }
    program = [_stamp(Path(w)) for w in settings.command if w.endswith(".py")]
    return (
        *values,
        tuple(sorted(environment.items())),
        *program,
        wanted_by(settings, {}),
        _contents(settings.folder),
        sys.executable,
    )


def _contents(folder: Path) -> Hashable:
    """Return names, sizes and times below a folder; something unique if it is huge."""
    found: list[tuple[str, int, int]] = []
    for place, names, files in os.walk(folder):
        names[:] = [n for n in names if n not in ("__pycache__", ".git")]
        found += [_stamp(Path(place) / name) for name in files]
        if len(found) > MOST_ENTRIES:
            return object()
    return tuple(sorted(found))


def _stamp(path: Path) -> tuple[str, int, int]:
    try:
        status = path.lstat()
    except OSError:
        return (str(path), -1, -1)
    return (str(path), status.st_size, status.st_mtime_ns)
