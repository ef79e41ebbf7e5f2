"""From the trace file of one process to what it did, as far as it can be read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spotchaos.model import (
    LoadMark,
    ProgramException,
    RankTrace,
    SaveMark,
    StateMark,
    StepMark,
)
from spotchaos.trace.format import (
    LIVE,
    PROBE_SITES,
    STEPS_SLOT,
    Counters,
    decode_lines,
    site_slot,
)
from spotchaos.trace.tracebacks import quoted


@dataclass(slots=True)
class _Save:
    """The writes between two steps, while they are being read."""

    step: int
    begun_at_s: float
    numbers: dict[int, float | None] = field(default_factory=dict)  # n -> end
    paths: dict[str, None] = field(default_factory=dict)
    state: StateMark | None = None
    is_beside: bool = False
    held: set[str] = field(default_factory=set)
    took_s: float = 0.0


@dataclass(slots=True)
class TracedProcess:
    """One process while its marks are being read; what frozen records are made of."""

    hello: Mapping[str, Any] = field(default_factory=dict)
    states: dict[int, StateMark] = field(default_factory=dict)
    finish: StateMark | None = None
    steps: dict[int, StepMark] = field(default_factory=dict)
    saves: list[_Save] = field(default_factory=list)
    loads: dict[tuple[str, str], LoadMark] = field(default_factory=dict)
    sites: list[tuple[str, int, int, float]] = field(default_factory=list)
    optimizers: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    dumps: list[Mapping[str, Any]] = field(default_factory=list)
    tensors: dict[int, Mapping[str, str]] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)
    bye: Mapping[str, Any] | None = None
    torch: Mapping[str, Any] | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    waiting: StateMark | None = None  # a state at "save" that came before its save

    @property
    def done(self) -> int:
        return max(self.steps, default=0)

    @property
    def rank(self) -> int:
        return int(self.hello.get("rank") or 0)

    @property
    def argv(self) -> tuple[str, ...]:
        return tuple(map(str, self.hello.get("argv") or ()))

    @property
    def world_size(self) -> int:
        return int(self.hello.get("world_size") or 0)

    @property
    def exception(self) -> ProgramException | None:
        return _exception((self.bye or {}).get("exception"))

    @property
    def is_main(self) -> bool:
        return self.hello.get("role", "main") != "helper" or self.has_trained

    @property
    def has_trained(self) -> bool:
        return bool(self.steps) or bool(self.states)

    @property
    def made_steps(self) -> bool:
        """Whether it trained to its end, and did not only look at batches."""
        counted = dict((self.bye or {}).get("counted") or {})
        return bool(self.steps) and any(
            counted.get(k) for k in ("optimizer", "backward")
        )

    @property
    def began_at_s(self) -> float:
        return float(self.hello.get("t") or 0.0)

    @property
    def ended_at_s(self) -> float:
        return float((self.bye or {}).get("t") or math.inf)

    @property
    def claim(self) -> tuple[bool, int, int, bool, bool, float]:
        """How well this process speaks for its rank; the greater one is believed."""
        return (
            bool(self.steps),
            len(self.steps),
            len(self.states),
            self.hello.get("rank") is not None,
            self.torch is not None,
            # Of two that did nothing, the first started is the program itself.
            -float(self.hello.get("t") or 0.0),
        )

    def adopt(self, others: Iterable[TracedProcess]) -> None:
        """Take over the saves of children that only save, as a thread's would be."""
        for other in others:
            is_child = other.hello.get("ppid") == self.hello.get("pid")
            if other is self or other.has_trained or not is_child:
                continue
            for group in other.saves:
                marks = self.steps.values()
                group.step = sum(mark.t_s <= group.begun_at_s for mark in marks)
                group.is_beside = True
                self.saves.append(group)
        self.saves.sort(key=lambda group: group.begun_at_s)

    def finished(self) -> RankTrace:
        """Return the frozen record."""
        bye = self.bye or {}
        counts = dict(self.counters)
        for site, count in dict(bye.get("counts") or {}).items():
            counts[str(site)] = max(int(count), counts.get(str(site), 0))
        torch = self.torch or {}
        steps = tuple(self.steps[n] for n in sorted(self.steps))
        return RankTrace(
            rank=self.rank,
            states=dict(sorted(self.states.items())),
            finish=self.finish,
            steps=steps,
            saves=tuple(
                _save(n, group, self.states)
                for n, group in enumerate(self.saves, start=1)
            ),
            loads=tuple(self.loads.values()),
            counts=counts,
            sites=tuple(self.sites),
            optimizers=tuple(self.optimizers[n] for n in sorted(self.optimizers)),
            closings={
                int(k): int(v) for k, v in dict(bye.get("closings") or {}).items()
            },
            main_optimizer=bye.get("main_optimizer"),
            counted={k: int(v) for k, v in dict(bye.get("counted") or {}).items()},
            exception=self.exception,
            said_bye=self.bye is not None,
            modules=tuple((str(n), str(f)) for n, f in bye.get("modules") or ()),
            dumps=tuple(self.dumps),
            tensors=self.tensors,
            notes=tuple(self.notes),
            pid=int(self.hello.get("pid") or 0),
            torch=torch.get("version"),
            python=self.hello.get("python"),
            algorithm=torch.get("algorithm"),
            epochs=_epochs(steps, self.sites),
        )


def read_process(path: Path) -> TracedProcess | None:
    """Read the file of one process; None if it does not even say who it is."""
    process = TracedProcess(counters=_counters(path.with_suffix(".counters")))
    try:
        content = path.read_bytes()
    except OSError:
        return None
    marks: Iterable[Any] = decode_lines(content)
    for mark in marks:
        if not isinstance(mark, dict):
            continue
        reader = _READERS.get(str(mark.get("k")))
        if reader is None:
            continue
        try:
            reader(process, mark)
        except (KeyError, TypeError, ValueError):
            # A mark of a later release, or one that a dying process garbled.
            continue
    return process if process.hello else None


def _counters(path: Path) -> dict[str, int]:
    try:
        page = Counters(str(path))
    except (OSError, ValueError):
        # No page, or one cut short before it had its size.
        return {}
    try:
        counts = {site: page.get(site_slot(site)) for site in PROBE_SITES}
        counts["step-end"] = max(counts["step-end"], page.get(STEPS_SLOT))
    finally:
        page.close()
    return {site: count for site, count in counts.items() if count}


def _read_hello(process: TracedProcess, mark: Mapping[str, Any]) -> None:
    # It says who it is again when its rank turns out to be another.
    process.hello = {**mark, "t": process.hello.get("t", mark.get("t"))}


def _read_torch(process: TracedProcess, mark: Mapping[str, Any]) -> None:
    process.torch = mark


def _read_state(process: TracedProcess, mark: Mapping[str, Any]) -> None:
    rng: dict[str, tuple[str, str | None, int]] = {}
    components = {str(k): str(v) for k, v in dict(mark["c"]).items() if v is not None}
    for stream, value in dict(mark.get("rng") or {}).items():
        block, following, position = value
        rng[str(stream)] = (str(block), following and str(following), int(position))
        components[str(stream)] = f"{block}.{position}"
    process.dtypes.update(mark.get("dtypes") or {})
    state = StateMark(
        step=int(mark["step"]),
        at=str(mark["at"]),
        components=components,
        rng=rng,
        epoch=mark.get("epoch"),
        t_s=float(mark.get("taken") or mark.get("t") or 0.0),
        dtypes=dict(process.dtypes),
        less={
            frozenset(int(i) for i in idle): {str(k): str(v) for k, v in found.items()}
            for idle, found in mark.get("less") or ()
        },
    )
    if state.at == "finish":
        process.finish = state
    elif state.at == "save":
        group = process.saves[-1] if process.saves else None
        if group is not None and group.step == state.step and group.state is None:
            group.state = state
        else:
            process.waiting = state
    else:
        # A forward whose gradients were dropped may have announced the same step: the
        # last one before the step is the one whose gradients reached it.
        process.states[state.step] = state


def _read_step(process: TracedProcess, mark: Mapping[str, Any]) -> None:
    samples, rows = mark.get("samples"), mark.get("rows")
    loss = mark.get("loss")
    components = {str(k): str(v) for k, v in dict(mark["c"]).items() if v is not None}
    process.steps[int(mark["step"])] = StepMark(
        step=int(mark["step"]),
        components=components,
        loss=None if loss is None else float(loss),
        samples=None if samples is None else tuple(str(s) for s in samples),
        ids=str(mark.get("ids") or "rows"),
        rows=None if rows is None else tuple(str(r) for r in rows),
        micro=int(mark.get("micro") or 1),
        epoch=mark.get("epoch"),
        by={int(i): (int(a), int(b)) for i, (a, b) in (mark.get("by") or {}).items()},
        frozen=_by_kind(mark.get("frozen") or ()),
        t_s=float(mark.get("t") or 0.0),
    )


def _by_kind(pairs: Iterable[Sequence[str]]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for kind, fingerprint in pairs:
        found.setdefault(str(kind), set()).add(str(fingerprint))
    return {kind: frozenset(each) for kind, each in found.items()}


def _read_save(process: TracedProcess, mark: Mapping[str, Any]) -> None:
    number, begun = int(mark["n"]), float(mark.get("t") or 0.0)
    # All writes between two steps are one save, whatever number they were given. What a
    # thread beside training writes is of earlier steps, and each of one of its own.
    last = process.saves[-1] if process.saves else None
    beside = bool(mark.get("beside"))
    if last is None or last.step != process.done or beside or last.is_beside:
        process.saves.append(_Save(process.done, begun, is_beside=beside))
    group = process.saves[-1]
    group.numbers[number] = None
    waiting = process.waiting
    if group.state is None and waiting is not None and waiting.step == group.step:
        group.state = waiting
    process.waiting = None


def _read_saved(process: TracedProcess, mark: Mapping[str, Any]) -> None:
    number = int(mark["n"])
    for group in reversed(process.saves):
        if number in group.numbers:
            group.numbers[number] = float(mark.get("t") or 0.0)
            group.paths.update(dict.fromkeys(str(p) for p in mark.get("paths") or ()))
            group.took_s += float(mark.get("seconds") or 0.0)
            return


def _read_held(process: TracedProcess, mark: Mapping[str, Any]) -> None:
    number = int(mark["n"])
    for group in reversed(process.saves):
        if number in group.numbers:
            group.held.update(str(digest) for digest in mark["weights"])
            return


def _read_load(process: TracedProcess, mark: Mapping[str, Any]) -> None:
    if mark["path"] is None:
        return
    path, via = str(mark["path"]), str(mark.get("via") or mark["k"])
    load = LoadMark(
        path=path, via=via, step=process.done, t_s=float(mark.get("t") or 0.0)
    )
    process.loads.setdefault((path, via), load)


def _read_site(process: TracedProcess, mark: Mapping[str, Any]) -> None:
    step = mark.get("step")
    process.sites.append(
        (
            str(mark["site"]),
            int(mark["n"]),
            process.done if step is None else int(step),
            float(mark.get("t") or 0.0),
        )
    )


def _read_optimizer(process: TracedProcess, mark: Mapping[str, Any]) -> None:
    index = int(mark["index"])
    kept = {k: v for k, v in mark.items() if k not in ("k", "t")}
    process.optimizers[index] = {**process.optimizers.get(index, {}), **kept}


def _read_note(process: TracedProcess, mark: Mapping[str, Any]) -> None:
    process.notes.append((str(mark["name"]), str(mark.get("message") or "")))


def _read_tensors(process: TracedProcess, mark: Mapping[str, Any]) -> None:
    digests = {str(name): str(digest) for name, digest in dict(mark["digests"]).items()}
    process.tensors[int(mark["step"])] = digests


def _read_dump(process: TracedProcess, mark: Mapping[str, Any]) -> None:
    process.dumps.append({k: v for k, v in mark.items() if k not in ("k", "t")})


def _read_bye(process: TracedProcess, mark: Mapping[str, Any]) -> None:
    process.bye = mark


_READERS = {
    "hello": _read_hello,
    "torch": _read_torch,
    "state": _read_state,
    "step": _read_step,
    "save": _read_save,
    "saved": _read_saved,
    "held": _read_held,
    "load": _read_load,
    "read": _read_load,
    "site": _read_site,
    "optimizer": _read_optimizer,
    "note": _read_note,
    "dump": _read_dump,
    "tensors": _read_tensors,
    "bye": _read_bye,
}


def _save(number: int, group: _Save, states: Mapping[int, StateMark]) -> SaveMark:
    """Return the frozen record of one save; `states` are those of the attempt."""
    found = [
        step
        for step, state in states.items()
        if step <= group.step and state.components.get("weights") in group.held
    ]
    holds = max(found, default=None)
    is_of_unknown_step = group.is_beside and holds is None
    if not group.is_beside and group.held:
        # What was not found is of this step, in another precision or of another model,
        # unless there are steps that were not sampled.
        now = group.state.components.get("weights") if group.state is not None else None
        if {LIVE, now} & group.held:
            holds = group.step
        elif holds is None:
            is_of_unknown_step = not all(n in states for n in range(group.step))
            holds = None if is_of_unknown_step else group.step
    ends = [end for end in group.numbers.values() if end is not None]
    whole = len(ends) == len(group.numbers)
    state = group.state
    return SaveMark(
        number=number,
        step=group.step,
        paths=tuple(group.paths),
        state=replace(state, at="save") if state is not None else None,
        begun_at_s=group.begun_at_s,
        ended_at_s=max(ends) if whole and ends else None,
        is_beside=group.is_beside,
        holds=holds,
        is_of_unknown_step=is_of_unknown_step,
        took_s=group.took_s if whole and ends else None,
    )


def _exception(found: Any) -> ProgramException | None:
    if not isinstance(found, Mapping):
        return None
    line = found.get("line")
    message = str(found.get("message") or "")
    return quoted(message) or ProgramException(
        type=str(found.get("type") or "Exception"),
        message=message,
        file=found.get("file"),
        line=int(line) if isinstance(line, int) else None,
    )


def _epochs(
    steps: tuple[StepMark, ...], sites: Iterable[tuple[str, int, int, float]]
) -> dict[int, int]:
    """Return the last step of each epoch that ended within the attempt."""
    ended = {step: n for site, n, step, _ in sites if site == "epoch-end" and step}
    for earlier, later in itertools.pairwise(steps):
        if None not in (earlier.epoch, later.epoch) and earlier.epoch != later.epoch:
            ended[earlier.step] = int(earlier.epoch or 0)
    return dict(sorted(ended.items()))
