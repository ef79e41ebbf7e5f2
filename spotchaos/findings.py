"""The table of findings: every name that a verdict can carry, and what it means.

A name is stable for ever. Each has a page (`spotchaos explain NAME`), a mutant that shows
it and a mended twin that does not. The order within the table is the order of causes:
where several findings hold of one resume, the first is named first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Group = Literal[
    "resume",
    "state",
    "data",
    "divergence",
    "durability",
    "interruption",
    "ranks",
    "storage",
    "outputs",
    "tool",
]


@dataclass(frozen=True, slots=True)
class Kind:
    """One name in the table, with the sentence that explains it."""

    name: str
    group: Group
    summary: str


def _kinds(group: Group, **summaries: str) -> dict[str, Kind]:
    return {
        key.replace("_", "-"): Kind(key.replace("_", "-"), group, text)
        for key, text in summaries.items()
    }


FINDINGS: dict[str, Kind] = {
    **_kinds(
        "resume",
        never_resumes="the program cannot resume, not even after a clean stop",
        resume_failed="the program resumes after a clean stop, but not after this one",
        no_checkpoint="the program never saves anything that it could resume from",
        silent_restart="it started again from step 0 although a checkpoint was there",
        foreign_resume="it resumed from a checkpoint of another run",
        stale_resume="it resumed from an older checkpoint than the newest whole one",
        lost_work="more steps were done again than the promise allows",
        hang="it stopped making progress and never ended",
        no_progress="attempt after attempt ended no further than the one before",
        retrained_after_finish="started again after it had finished, it trained on",
    ),
    **_kinds(
        "state",
        weights_not_restored="the weights are not those of the step it resumed from",
        buffers_not_restored="module buffers are not those of the step it resumed from",
        optimizer_not_restored="the optimizer's state was lost",
        scheduler_not_restored="learning rates or the scheduler's position were lost",
        scaler_not_restored="the gradient scaler's state was lost",
        average_not_restored="averaged weights or their counter were lost",
        rng_not_restored="a random stream that matters later was not restored",
        rng_disturbed="a random stream was restored, then moved before the first step",
        dtype_changed="a tensor came back in another precision",
        mixed_steps="components come from checkpoints of different steps",
        step_count_wrong="it ended after more or fewer steps than the uninterrupted run",
    ),
    **_kinds(
        "data",
        samples_repeated="some samples were trained on more often than they should be",
        samples_skipped="some samples were never trained on",
        order_changed="the same samples came in another order",
    ),
    **_kinds(
        "divergence",
        reduction_order_changed="gradients differ in the last bits by order of addition",
        diverged="the runs part, and none of the causes above explains it",
    ),
    **_kinds(
        "durability",
        torn_checkpoint="a kill inside the save left a checkpoint that cannot be read",
        unsynced_checkpoint="a power loss leaves it torn, since it was never synced",
        silent_damage="a damaged checkpoint was loaded without a word",
        pointer_ahead="the pointer names a checkpoint that is not whole",
        deleted_before_saved="the old checkpoint was deleted before the new was whole",
        error_destroyed_checkpoint="an error while saving destroyed the old checkpoint",
        save_lost="the run ended well and its last save had failed without a word",
        leftover_blocks_save="a leftover of the killed save makes the next save fail",
        leftovers="files, processes, memory or uploads stay behind for ever",
    ),
    **_kinds(
        "interruption",
        signal_ignored="a signal came and it trained on to the deadline without a save",
        notice_ignored="a notice came and it trained on to the deadline without a save",
        deadline_missed="it reacted, and no checkpoint was whole when the machine went",
        stopped_for_advice="it stopped for advice that no reclaim follows",
        torn_snapshot="a checkpoint holds tensors of different steps",
        exit_code="the exit status does not tell what happened",
    ),
    **_kinds(
        "ranks",
        ranks_disagree="ranks resumed from different steps",
        peer_hang="a rank waits for ever for one that is gone",
        orphans="processes outlived the attempt that started them",
    ),
    **_kinds(
        "storage",
        upload_lost="the run ended well and nothing is in the store",
        short_object="an object in the store is shorter than what was written",
    ),
    **_kinds(
        "outputs",
        outputs_torn="an output is not whole: half a line, or a file that breaks off",
        marked_before_written="an output is missing that was marked as done too early",
        outputs_missing="outputs of the uninterrupted run are missing at the end",
        outputs_repeated="an output is there more often than it should be",
        outputs_differ="an output has another value than in the uninterrupted run",
        outputs_foreign="an output is there that no uninterrupted run leaves",
        work_repeated="more was done again than --max-lost-work allows",
    ),
    **_kinds(
        "tool",
        baseline_failed="the program fails by itself, without any interruption",
        not_observed="the probe saw no training step",
        not_repeatable="two uninterrupted runs differ, so nothing can be compared",
        vacuous="the weights never change, so that everything is equal",
        not_reached="the kill point was never reached",
    ),
}

# Findings with which the verdict is `unknown` instead of `violated`.
UNKNOWN: frozenset[str] = frozenset(
    k.name for k in FINDINGS.values() if k.group == "tool"
)

# Notes say what was seen and breaks no promise.
NOTES: dict[str, str] = {
    "rng-moved-without-effect": "a random stream was not restored, and nothing ever"
    " read it in a way that reached a batch, gradient, loss, weight or buffer",
    "scheduler-moved-without-effect": "a scheduler's position was not restored, and"
    " every learning rate to the end is the same",
    "component-not-compared": "two baselines disagree on a component, so that it is not"
    " compared",
    "existing-hidden": "checkpoints that lay in the folder were hidden from the runs",
    "not-protected": "this machine cannot isolate something",
    "inside-save-left-out": "kill points inside a save need file sites, which are off",
    "kill-point-dropped": "a drawn kill point was not reached and dropped off the plan",
    "observer": "the light run was compared with the full one",
    "no-save-explored": "the recorded run saved nothing that could be explored",
    "cached-baseline": "the baselines of an earlier campaign were used, and one run of now"
    " equals them",
    "cold-path": "attempts were fresh processes, and why",
    "counted-otherwise": "steps were counted in another way than by optimizer steps",
    "notice-played": "how a provider's notice was played, and at which time scale",
    "smallest-grace": "the smallest grace window in which every plan holds",
    "lives-on": "processes lived on after the uninterrupted program's own end",
    "judged-by-outputs": "what the program leaves behind is judged, and how much that is",
    "work-again": "how many records were written again after an interruption",
    "outputs-besides": "a resumed run left files that an uninterrupted one does not",
    "confirmed-cold": "a finding was confirmed once in a fresh process",
}

# The promise that each finding breaks, weakest first; see interface.md 1.
PROMISES: tuple[str, ...] = ("resumes", "state", "samples", "bitwise")


def breaks(name: str) -> str:
    """Return the weakest promise that the finding `name` breaks."""
    group = FINDINGS[name].group
    if group == "data":
        # The same samples in another order are each trained on as often as before.
        return "bitwise" if name == "order-changed" else "samples"
    if group == "divergence" or name == "leftovers":
        # What stays behind is in nobody's way: the run came back, and finished.
        return "bitwise"
    if group == "outputs":
        # The right outputs, made twice: it came back, and finished.
        return "resumes" if name == "work-repeated" else "samples"
    if group == "state":
        return "samples" if name == "step-count-wrong" else "state"
    return "resumes"
