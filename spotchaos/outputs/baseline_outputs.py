"""The groundwork of a program that trains nothing: can its outputs be compared?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotchaos.config.settings import Settings
from spotchaos.launch.isolation.view import View
from spotchaos.model import (
    Attempt,
    Finding,
    Note,
    OutputDifference,
    OutputsFound,
    RankTrace,
    Stored,
)
from spotchaos.outputs.columns import unread_columns
from spotchaos.outputs.comparing import compare
from spotchaos.outputs.learning import learn
from spotchaos.outputs.masks import Rules
from spotchaos.outputs.objects import with_objects
from spotchaos.outputs.protocol import marks_ahead
from spotchaos.outputs.tables import TornError
from spotchaos.outputs.watching import (
    Watch,
    is_database,
    is_record,
    journals_of,
    labels_of,
    outputs_in,
    tree_of,
)
from spotchaos.persistence.oplog import OpLog

_MOST_MASKED = 6
_NO_TRAINING = ("not-observed", "vacuous")


@dataclass(frozen=True, slots=True)
class Grounded:
    """What uninterrupted runs left, ready to be compared with."""

    watch: Watch
    found: OutputsFound
    note: Note


class LeftByRuns:
    """The views of uninterrupted runs, kept until what is left in them is compared.

    Args:
        first: of the run that others are compared with; its owner closes it.
    """

    def __init__(self, first: View) -> None:
        self._first = first
        self._later: dict[str, View] = {}

    def add(self, view: View) -> None:
        self._later[view.name] = view

    def forget(self, name: str) -> None:
        """Close the view of a run that is made once more."""
        view = self._later.pop(name, None)
        if view is not None:
            view.close()

    def baseline_context(
        self,
        settings: Settings,
        log: OpLog | None,
        stored: Sequence[Stored | None],
        *,
        is_alone: bool,
        trainings: int,
        is_blind: bool,
    ) -> Grounded | Finding | None:
        """Compare what was left, if that is judged, and close the later views.

        Args:
            settings: what the user asked for.
            log: file ops of one of the runs; None: file sites are off.
            trainings: that the command made, one after the other, in processes of their
                own; each by itself cannot be judged.
            is_blind: no process of it loaded the probe.
            stored: what the runs left in an object store.
            is_alone: nothing was trained: outputs are all there is to judge.
        """
        try:
            if not (is_alone or settings.outputs):
                return None
            views = [self._first, *self._later.values()]
            return ground_outputs(
                settings,
                views,
                stored,
                log=log,
                is_trained=not is_alone,
                trainings=trainings,
                is_blind=is_blind,
            )
        finally:
            for name in list(self._later):
                self.forget(name)


def is_untrained(attempt: Attempt) -> bool:
    """Tell whether an attempt made no optimizer step, no backward and no new weights."""
    return not any(map(_is_trained, attempt.trace.ranks.values()))


def _is_trained(rank: RankTrace) -> bool:
    seen = [rank.counted.get(way) for way in ("optimizer", "backward")]
    if any(seen) or rank.counts.get("optimizer-step") or rank.counts.get("backward"):
        return True
    marks = [*rank.states.values(), *([rank.finish] if rank.finish else [])]
    weights = {m.components["weights"] for m in marks if "weights" in m.components}
    return len(weights) > 1 or any(one.get("steps") for one in rank.optimizers)


def may_be_judged_by_outputs(attempt: Attempt, settings: Settings) -> bool:
    """Tell whether the outputs of uninterrupted runs may be wanted."""
    return bool(settings.outputs or attempt.trace.in_turn or is_untrained(attempt))


def stands_in(attempt: Attempt, finding: Finding | None) -> bool:
    """Tell whether outputs are judged because nothing of a training can be.

    Args:
        attempt: the uninterrupted run.
        finding: why its training cannot be judged; None: it could be.
    """
    if attempt.survivors or (finding and finding.name not in _NO_TRAINING):
        return False
    return bool(attempt.trace.in_turn) or is_untrained(attempt)


def nothing_at_all() -> Finding:
    """Return why a program that trains nothing and leaves nothing cannot be judged."""
    return Finding(
        "not-observed",
        "the program ran to its end, nothing was trained, and it left no outputs",
        hint="are they there already, from an earlier run? What it leaves outside of its"
        " folder is not seen: give it `{out}` as its folder of output",
    )


def ground_outputs(
    settings: Settings,
    views: Sequence[View],
    stored: Sequence[Stored | None],
    *,
    log: OpLog | None,
    is_trained: bool,
    trainings: int = 0,
    is_blind: bool = False,
) -> Grounded | Finding | None:
    """Compare what uninterrupted runs left.

    Args:
        settings: what the user asked for.
        views: of the runs; the first is the one to compare with.
        stored: what the runs left in an object store.
        log: file ops of one of them; None: file sites are off.
        is_trained: outputs are judged besides the training.
        trainings: that were made one after the other, and cannot be judged.
        is_blind: no process of it loaded the probe.

    Returns:
        The ground, a finding that says why there is none, or None: they left nothing.
    """
    trees = [tree_of(view, settings.outputs) for view in views]
    objects = any(one is not None and one.objects for one in stored)
    if not trees[0] and (settings.outputs or not objects):
        if not settings.outputs:
            return None
        globs = ", ".join(settings.outputs)
        return Finding(
            "not-observed",
            f"nothing that the program left fits --outputs {globs}",
            hint="the glob is relative to the working folder; quote it, so that the"
            " shell leaves it alone",
        )
    rules = Rules(
        ignored=frozenset(settings.ignore_field),
        key=settings.key,
        tolerance=settings.tolerance,
        unordered=settings.unordered,
    )
    try:
        learned = learn(trees[0], trees[1], rules)
        parting = learned.parting
        for tree in trees[2:]:
            found = compare(trees[0], tree, learned.rules)
            parting = parting or next((d for d in found if d.kind != "besides"), None)
    except TornError as error:
        return Finding(
            "not-observed",
            f"an output of an uninterrupted run cannot be read: {error}",
            hint="judge the others only: --outputs GLOB",
        )
    if parting is not None:
        return _not_repeatable(parting)
    files = outputs_in(views[0], settings.outputs)
    pages = {one.path for one in files if is_database(trees[0][one.path])}
    labels = labels_of(one.path for one in files)
    counted = labels_of(one.path for one in files if one.path not in pages)
    written = None
    if log is not None and counted:
        written = sum(is_record(op, counted) for op in log.ops)
    found_outputs = OutputsFound(
        sizes={one.path: one.size for one in files},
        records=learned.records,
        written=written,
        ahead=marks_ahead(log),
        is_alone=not is_trained,
    )
    if not settings.outputs:
        found_outputs = with_objects(found_outputs, stored)
    watch = Watch(
        views[0],
        settings.outputs,
        learned.rules,
        labels=(*labels, *journals_of(labels_of(pages))),
        counted=counted,
        is_supervised=log is not None,
    )
    note = Note(
        "judged-by-outputs",
        _said(found_outputs, trainings, is_blind=is_blind)
        + _not_compared(learned.rules.masked)
        + unread_columns(trees[0].values()),
    )
    return Grounded(watch, found_outputs, note)


def _said(found: OutputsFound, trainings: int, *, is_blind: bool) -> str:
    begin = "nothing was trained; judged by" if found.is_alone else "judged besides by"
    if is_blind:
        begin = "no process could be looked into; judged by"
    if trainings:
        begin = (
            f"{trainings} trainings, one after the other, which are not judged one by one"
            " but by"
        )
    return f"{begin} {found.counted}"


def _not_compared(masked: Mapping[str, Mapping[str, str]]) -> str:
    said = [
        f"{name} of {group} ({reason})"
        for group, fields in masked.items()
        for name, reason in fields.items()
    ]
    if not said:
        return ""
    more = f" and {len(said) - _MOST_MASKED} more" if len(said) > _MOST_MASKED else ""
    return f"; not compared: {', '.join(said[:_MOST_MASKED])}{more}"


def _not_repeatable(parting: OutputDifference) -> Finding:
    place = parting.path + (f", {parting.record}" if parting.record else "")
    said, option = (
        f"it is {parting.kind} in one of them",
        "--outputs GLOB leaves it out",
    )
    if parting.kind == "differ" and parting.field is not None:
        said = (
            f"{parting.field} is {parting.wanted} in one and {parting.got} in another"
        )
        option = (
            f"--ignore-field {parting.field} leaves it out, --tolerance ABS lets floats"
            " differ by so much"
        )
    elif parting.detail:
        said = parting.detail
    if "another order" in parting.detail:
        option = "--unordered lets lines come in any order"
    return Finding(
        "not-repeatable",
        f"uninterrupted runs leave different outputs: {place}: {said}",
        hint=f"seed what is drawn (--seed-program 1); {option}",
    )
