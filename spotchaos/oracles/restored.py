"""Was every component of the state restored, and all from one and the same step?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spotchaos.model import Finding, Note
from spotchaos.oracles.causes import (
    draws_order,
    frozen,
    is_foreign,
    is_restart,
    judged,
    may_matter,
    mixup,
    streams,
    wrong,
)
from spotchaos.oracles.lineage import Case, ResumedAttempt
from spotchaos.oracles.torn import strays
from spotchaos.oracles.views import RankView
from spotchaos.oracles.wording import (
    HINTS,
    PLURAL,
    from_where,
    listed,
    name_of,
    on_ranks,
    place_of,
)

# Which finding a lost component is.
FINDING_OF: dict[str, str] = {
    "weights": "weights-not-restored",
    "buffers": "buffers-not-restored",
    "optimizer": "optimizer-not-restored",
    "rates": "scheduler-not-restored",
    "scheduler": "scheduler-not-restored",
    "scaler": "scaler-not-restored",
    "averages": "average-not-restored",
}


def judge_restored(case: Case) -> Iterator[Finding]:
    """Name each component that is not of the step at which the attempt joined."""
    for resumed in judged(case):
        yield from _dtypes(resumed)
        mixed = {rank: _mixed(resumed, view) for rank, view in resumed.views.items()}
        yield from _mixed_steps(resumed, mixed)
        for name in dict.fromkeys(FINDING_OF.values()):
            yield from _lost(case, resumed, name, mixed)
        yield from _lost_frozen(resumed)
        yield from _lost_streams(resumed)


def note_restored(case: Case) -> Iterator[Note]:
    """Note streams and schedulers that were lost without any effect."""
    for resumed in case.resumes():
        if is_restart(resumed) or is_foreign(resumed) or resumed.join.disagrees:
            continue
        for view in resumed.views.values():
            idle = [
                s
                for s in view.streams
                if s not in streams(resumed, view) and not may_matter(view, s)
            ]
            if idle:
                yield Note(
                    "rng-moved-without-effect",
                    "nothing that a promise is about depended on it: after the resume"
                    f" at step {view.joined} {listed(map(_stream_words(view), idle))}",
                    attempt=resumed.number,
                )
            if "scheduler" in view.wrong and "scheduler" not in wrong(view):
                yield Note(
                    "scheduler-moved-without-effect",
                    f"after the resume at step {view.joined} the scheduler's position is"
                    f" {from_where(view.restored['scheduler'])}; every learning rate to"
                    " the end is the same",
                    attempt=resumed.number,
                )


def _ranks(resumed: ResumedAttempt, holds: Callable[[RankView], bool]) -> list[int]:
    return [rank for rank, view in sorted(resumed.views.items()) if holds(view)]


def _dtypes(resumed: ResumedAttempt) -> Iterator[Finding]:
    for component in dict.fromkeys(c for v in resumed.views.values() for c in v.dtypes):
        ranks = _ranks(resumed, lambda v, c=component: c in v.dtypes)  # type: ignore[misc]
        view = resumed.views[ranks[0]]
        was, now = view.dtypes[component]
        yield Finding(
            "dtype-changed",
            f"after the resume at step {view.joined} {name_of(component)} came back as"
            f" {now} instead of {was}{on_ranks(ranks, resumed.views)}",
            hint="load_state_dict casts to the dtype of what it loads into: build model"
            " and optimizer in their training dtype first, or restore the dtype after it",
            attempt=resumed.number,
            step=view.joined + 1,
            rank=ranks[0],
            component=component,
        )


def _mixed(resumed: ResumedAttempt, view: RankView) -> dict[str, int]:
    """Return components that were restored, but from the checkpoint of another step."""
    saved = {step for save in resumed.saved for step in (save.step, *save.written)}
    saved -= {view.joined, 0}
    return {
        component: min(view.looked[component] & saved)
        for component in wrong(view)
        if component not in view.dtypes
        # Many steps have one rate, so that it alone proves no other checkpoint.
        and (component != "rates" or "scheduler" not in view.looked)
        and view.restored[component] != "fresh"
        and view.looked[component] & saved
    }


def _mixed_steps(
    resumed: ResumedAttempt, mixed: dict[int, dict[str, int]]
) -> Iterator[Finding]:
    ranks = [rank for rank, found in sorted(mixed.items()) if found]
    if not ranks:
        return
    view, found = resumed.views[ranks[0]], mixed[ranks[0]]
    right = [
        c for c in view.restored if c in FINDING_OF and view.joined in view.looked[c]
    ]
    others = [f"{name_of(c)} of step {step}" for c, step in found.items()]
    yield Finding(
        "mixed-steps",
        f"the resume put together {listed(map(name_of, right)) or 'a state'} of step"
        f" {view.joined} and {listed(others)}{on_ranks(ranks, resumed.views)}",
        hint="write all parts of a checkpoint below one name that appears at once (a new"
        " folder renamed into place, or a manifest written last), and load all parts of"
        " the same step or none",
        attempt=resumed.number,
        step=view.joined + 1,
        rank=ranks[0],
        component=next(iter(found)),
    )


def _lost(
    case: Case, resumed: ResumedAttempt, name: str, mixed: dict[int, dict[str, int]]
) -> Iterator[Finding]:
    """Name one component, or the two of a scheduler, as lost; once for all ranks."""

    def lost(view: RankView) -> list[str]:
        return [
            c
            for c in wrong(view)
            if FINDING_OF.get(c) == name
            and c not in mixed[view.rank]
            and c not in view.dtypes
        ]

    ranks = _ranks(resumed, lambda view: bool(lost(view)))
    if not ranks:
        return
    view = resumed.views[ranks[0]]
    component = lost(view)[0]
    part = _part(case, view, component)
    which, came = part or (name_of(component), from_where(view.restored[component]))
    hint = HINTS["scheduler" if name == "scheduler-not-restored" else component]
    yield Finding(
        name,
        f"the program resumed at step {view.joined}, but {which} came back"
        f" {came}{on_ranks(ranks, resumed.views)}",
        hint=hint if part is None else HINTS[f"part of {component}"],
        attempt=resumed.number,
        step=view.joined + 1,
        rank=ranks[0],
        component=component,
    )


def _lost_frozen(resumed: ResumedAttempt) -> Iterator[Finding]:
    """Name the weights of modules that no optimizer trains, once for all ranks."""
    found = {rank: frozen(view) for rank, view in sorted(resumed.views.items())}
    lost = {rank: came for rank, came in found.items() if came is not None}
    if not lost:
        return
    ranks = list(lost)
    view = resumed.views[ranks[0]]
    yield Finding(
        "weights-not-restored",
        f"the program resumed at step {view.joined}, but {name_of('frozen')} came back"
        f" {from_where(lost[view.rank])}{on_ranks(ranks, resumed.views)}",
        hint=HINTS["frozen"],
        attempt=resumed.number,
        step=view.joined + 1,
        rank=ranks[0],
        component="frozen",
    )


def _part(case: Case, view: RankView, component: str) -> tuple[str, str] | None:
    """Say which tensors of a component were lost, and from where they came, if some were not.

    As when a program trains two modules, or has two optimizers, and saves one.
    """
    table, found = case.baseline.tensors.get(view.rank), view.trace.tensors.get(0)
    if not table or found is None:
        return None
    lost = strays(found, table, component=component, step=view.joined)
    if lost is None:
        return None
    names, count = lost
    start = table.get(0, {})
    is_fresh = all(found.get(name) == start.get(name) for name in names)
    example = place_of(names[0])
    which = f"{len(names)} of {count} tensors of {name_of(component)} ({example}"
    which += ")" if len(names) == 1 else f" and {len(names) - 1} more)"
    return which, from_where("fresh" if is_fresh else "foreign")


def _lost_streams(resumed: ResumedAttempt) -> Iterator[Finding]:
    found = {
        rank: streams(resumed, view) for rank, view in sorted(resumed.views.items())
    }
    for stream in dict.fromkeys(s for each in found.values() for s in each):
        for disturbed in (False, True):
            ranks = [
                rank
                for rank, each in found.items()
                if stream in each
                and (stream in resumed.views[rank].disturbed) is disturbed
            ]
            if ranks:
                yield _lost_stream(resumed, stream, ranks)


def _lost_stream(resumed: ResumedAttempt, stream: str, ranks: list[int]) -> Finding:
    view = resumed.views[ranks[0]]
    draws = view.disturbed.get(stream)
    hint = HINTS.get(stream, HINTS["rng.torch"])
    if draws is None:
        hint = f"{hint}; on every rank its own" if len(resumed.views) > 1 else hint
    else:
        hint = (
            "something draws from it between the restore and the first step (creating a"
            " loader's iterator draws a seed): restore random streams last of all, after"
            " the iterator was made and the skipped batches were drawn"
        )
        batch = mixup(view)
        if batch is not None and batch.is_other_order and not batch.is_known:
            hint += (
                "; what the program makes as it goes and trains on (a replay memory)"
                " belongs in the checkpoint too"
            )
    words = _stream_words(view)(stream)
    reached = _reached(view, stream)
    return Finding(
        "rng-not-restored" if draws is None else "rng-disturbed",
        f"after the resume at step {view.joined} {words}{on_ranks(ranks, resumed.views)}"
        f"{reached}",
        hint=hint,
        attempt=resumed.number,
        step=view.joined + 1,
        rank=ranks[0],
        component=stream,
    )


def _stream_words(view: RankView) -> Callable[[str], str]:
    def words(stream: str) -> str:
        draws = view.disturbed.get(stream)
        are, have = ("are", "have") if stream in PLURAL else ("is", "has")
        if draws is not None:
            side = "ahead of" if draws > 0 else "behind"
            plural = "" if abs(draws) == 1 else "s"
            return (
                f"{name_of(stream)} {are} {abs(draws)} draw{plural} {side} where the"
                f" step had left {'them' if stream in PLURAL else 'it'}"
            )
        came = view.restored.get(stream, "foreign")
        if came == "foreign":
            return f"{name_of(stream)} {have} a value that no step of the run had"
        return f"{name_of(stream)} {are} {from_where(came)}"

    return words


def _reached(view: RankView, stream: str) -> str:
    """Say what the stream changed first, where it is one thing."""
    found = mixup(view)
    first = view.first("batch", "samples", "loss", "gradients", "weights", "buffers")
    if found is not None and first is not None and found.step <= first.step:
        if not draws_order(view, stream):
            return "; it is read within each step"
        return f"; the batch of step {found.step} is another one"
    if first is None:
        return ""
    made = first.made or first.state
    subject = "they" if stream in PLURAL else "it"
    verb = "are" if made[0] in PLURAL else "is"
    return (
        f"; the first thing that {subject} changed {verb} the {made[0]} of step"
        f" {first.step}"
    )
