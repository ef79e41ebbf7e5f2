"""Groundwork of earlier campaigns, kept while nothing that it depends on has changed.

What a command trained the last time is compared with one run of now, so that a stale
entry costs that run and never a verdict. Entries lie in a folder of the user's own, in
a format of Python's that runs code when it is read: nobody else may write there.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import secrets
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from spotchaos import __version__, model
from spotchaos.campaign.baseline import BaselineContext, Emit
from spotchaos.campaign.zygote_setup import unlike
from spotchaos.clock import Clock
from spotchaos.config.settings import Settings
from spotchaos.config.untrusted import read_bounded
from spotchaos.errors import HarnessError
from spotchaos.events import AttemptEnded, BaselineDone, PhaseStarted
from spotchaos.launch.isolation.leaving import LEAVING
from spotchaos.launch.isolation.places import cache_folder as folder
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.isolation.workspace import Workspace
from spotchaos.launch.zygote.forkable import start_of
from spotchaos.launch.zygote.zygote import Zygote, preloadable, raised_for
from spotchaos.model import Baseline, Ended, Note, RankTrace
from spotchaos.trial.context import TrialContext
from spotchaos.trial.trial import run_attempt

# Settings on which an uninterrupted run, or what is recorded of it, depends.
OF_RUNS = (
    "command",
    "deterministic",
    "durable",
    "environment",
    "fingerprint",
    "folder",
    "keep_env",
    "keep_existing",
    "lose",
    "netns",
    "ranks",
    "resume_cmd",
    "seed_program",
    "threads",
    "timeout_s",
    "tmp_elsewhere",
    "warm",
)
# Variables that differ from shell to shell and tell a program nothing.
_OF_SHELLS = ("PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES", "WINDOWID")
_OF_TOOLS = ("PYTEST_", "COV_", "SSH_", "XDG_SESSION")
# A folder with more entries than this is not looked through, and nothing is kept.
MOST_ENTRIES = 20_000
# Entries of this size would cost more to read than a run; the newest few are kept.
MOST_BYTES = 256 << 20
MOST_KEPT = 32
_DIGEST_BYTES = 32

Stamp = tuple[str, int, int]

# What was kept by code that knew other fields cannot be read.
_SHAPE = [
    (name, [field.name for field in fields(kind)])
    for name, kind in vars(model).items()
    if isinstance(kind, type) and is_dataclass(kind)
]


@dataclass(frozen=True, slots=True)
class Entry:
    """The groundwork of one program, and what was there when it was laid."""

    stamps: frozenset[Stamp]
    trial_context: Mapping[str, Any]
    baseline_context: Mapping[str, Any]
    modules: tuple[tuple[str, str], ...]


def may_keep(settings: Settings) -> bool:
    """Tell whether runs of now say anything about runs to come."""
    is_alone = settings.no_cache or settings.allow_network or settings.keep
    return not (is_alone or settings.outputs) and folder() is not None


def keep(settings: Settings, baseline_context: BaselineContext) -> None:
    """Keep groundwork for campaigns to come; what cannot be kept is not."""
    stamps = _stamps(settings, _all_ranks(baseline_context.baseline))
    if stamps is None:
        return
    trial_context = baseline_context.trial_context
    entry = Entry(
        stamps=stamps,
        trial_context={
            "orders": dict(trial_context.orders),
            "hidden": trial_context.hidden,
            "patterns": trial_context.patterns,
            "hang_s": trial_context.hang_s,
            "log": None
            if trial_context.log is None
            else replace(trial_context.log, data=None),
            "recorded": trial_context.recorded,
            "pty": trial_context.program.pty,
            "is_forked": trial_context.zygote is not None,
        },
        baseline_context={
            f.name: getattr(baseline_context, f.name)
            for f in fields(baseline_context)
            if f.name not in ("trial_context", "cpu_s")
        },
        modules=()
        if baseline_context.first_rank is None
        else baseline_context.first_rank.modules,
    )
    try:
        content = packed(entry)
        if len(content) <= MOST_BYTES:
            _write(_path(settings), content)
    except (OSError, pickle.PicklingError, TypeError, AttributeError):
        return


def recall(
    settings: Settings,
    program: Program,
    workspace: Workspace,
    emit: Emit,
    *,
    clock: Clock,
) -> BaselineContext | None:
    """Return groundwork of before if a run of now is the run that it was laid by.

    Raises:
        HarnessError: that run could not be carried out.
    """
    entry = _read(_path(settings))
    if entry is None:
        return None
    baseline: Baseline = entry.baseline_context["baseline"]
    if _stamps(settings, _all_ranks(baseline)) != entry.stamps:
        return None
    trial_context_values = dict(entry.trial_context)
    is_forked: bool = trial_context_values.pop("is_forked")
    program = replace(program, pty=trial_context_values.pop("pty"))
    trial_context = TrialContext(
        settings,
        program,
        workspace,
        on_attempt=lambda phase, attempt: emit(AttemptEnded(phase, attempt)),
        clock=clock,
        **trial_context_values,
    )
    emit(PhaseStarted("baseline of before"))
    view = trial_context.new_view("baseline-of-before")
    notes = [n for n in entry.baseline_context["notes"] if n.name != "cached-baseline"]
    if is_forked:  # else a note of before says why not
        try:
            trial_context = replace(
                trial_context, zygote=_zygote(trial_context, entry.modules)
            )
        except (HarnessError, OSError) as error:
            notes.append(Note("cold-path", f"every run is fresh: {error}"))
    attempt = run_attempt(trial_context, view, None)
    emit(AttemptEnded("baseline of before", attempt))
    if (
        attempt.ended is not Ended.FINISHED
        or unlike(baseline.first, attempt) is not None
    ):
        if trial_context.zygote is not None:
            trial_context.zygote.close()
        view.close()
        return None
    trial_context = replace(
        trial_context, finished_view=view, finished_attempt=attempt, timed=(attempt,)
    )
    kept = dict(entry.baseline_context)
    kept["notes"] = (
        *notes,
        Note(
            "cached-baseline",
            "the baselines are those of an earlier campaign, which one run of now equals;"
            " --no-cache runs them again",
        ),
    )
    baseline_context = BaselineContext(
        trial_context=trial_context, cpu_s=attempt.cpu_s, **kept
    )
    emit(BaselineDone(baseline_context.baseline, baseline_context.notes))
    return baseline_context


def _zygote(
    trial_context: TrialContext, modules: tuple[tuple[str, str], ...]
) -> Zygote | None:
    program = trial_context.program
    start = start_of(program.command, program.environment, program.folder)
    if start is None:
        return None
    return raised_for(
        program, start, trial_context.workspace, preloadable(modules, program.folder)
    )


def _all_ranks(baseline: Baseline) -> list[RankTrace]:
    """Return the ranks of the uninterrupted run, and of the control, which resumed."""
    control = () if baseline.control is None else baseline.control.attempts
    attempts = (baseline.first, *control)
    return [rank for each in attempts for rank in each.trace.ranks.values()]


def _path(settings: Settings) -> Path:
    values = [(name, repr(getattr(settings, name))) for name in OF_RUNS]
    environment = sorted(
        (k, v)
        for k, v in os.environ.items()
        if k not in _OF_SHELLS and not k.startswith(_OF_TOOLS)
    )
    text = repr((__version__, sys.version, _SHAPE, values, environment))
    place = folder()
    assert place is not None  # or `may_keep` had said so
    return place / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.pickle"


def _stamps(settings: Settings, ranks: Sequence[RankTrace]) -> frozenset[Stamp] | None:
    """Return names, sizes and times of all that a run reads; None if that is too much.

    The program's folder whole, the interpreter, the modules that were imported, the
    folders of installed packages, what was loaded from elsewhere, and our own code.
    """
    found: set[Stamp] = set()
    own = Path(__file__).parents[1]
    for place in (settings.folder.resolve(), own):
        for path, names, inside in os.walk(place):
            names[:] = [n for n in names if n not in ("__pycache__", ".git")]
            found.update(_stamp(Path(path, name)) for name in inside)
            if len(found) > MOST_ENTRIES:
                return None
    files = {file for rank in ranks for _, file in rank.modules if file}
    loads = (load.path for rank in ranks for load in rank.loads)
    words = (*settings.command, *(settings.resume_cmd or ()))
    files |= {path for path in (*loads, *words) if path.startswith("/")}
    # Those of other folders may be given by a path that leads there.
    files |= {str(settings.folder / word) for word in words if "/" in word}
    files |= {
        os.path.realpath(found) for found in map(shutil.which, words[:1]) if found
    }
    found.update(_stamp(Path(file)) for file in files)
    found.update(_stamp(place) for place in _package_folders(files))
    return frozenset(found)


def _package_folders(files: Iterable[str]) -> set[Path]:
    """Return the folders in which packages are installed: adding one changes their time."""
    return {
        Path(file[: file.index(name)] + name)
        for file in files
        for name in ("site-packages", "dist-packages")
        if name in file
    }


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return str(path), -1, -1
    return str(path), status.st_size, status.st_mtime_ns


def packed(entry: Entry) -> bytes:
    """Return an entry as it is kept: a digest, then what was pickled."""
    content = pickle.dumps(entry)
    return hashlib.sha256(content).digest() + content


def _write(path: Path, content: bytes) -> None:
    """Put an entry in its place whole, and let the oldest ones go."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    LEAVING.keep(new)
    try:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
        LEAVING.forget(new)
    entries = sorted(path.parent.glob("*.pickle"), key=lambda p: p.stat().st_mtime)
    for old in entries[:-MOST_KEPT]:
        old.unlink(missing_ok=True)


def _read(path: Path) -> Entry | None:
    """Return an entry; None if there is none that is whole and ours alone."""
    try:
        for each in (path, path.parent):
            status = each.stat()
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return None
        kept = read_bounded(path, most_bytes=MOST_BYTES + _DIGEST_BYTES)
        content = b"" if kept is None else kept[_DIGEST_BYTES:]
        # What is damaged is not even tried: reading it might take all memory.
        if kept is None or hashlib.sha256(content).digest() != kept[:_DIGEST_BYTES]:
            return None
        entry = pickle.loads(content)
    except Exception:  # an old or damaged entry may raise anything
        return None
    return entry if isinstance(entry, Entry) else None
