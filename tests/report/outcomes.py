"""Outcomes as campaigns make them, built by hand for the tests of reports."""

from pathlib import Path

from spotchaos.config.replay_token import make_token
from spotchaos.config.settings import Settings
from spotchaos.events import (
    AttemptEnded,
    BaselineDone,
    Outcome,
    PhaseStarted,
    Started,
    TrialDone,
)
from spotchaos.model import (
    Attempt,
    AttemptTrace,
    Baseline,
    Divergence,
    Ended,
    Finding,
    Judgement,
    LoadMark,
    Note,
    RankTrace,
    Resume,
    SaveMark,
    StepMark,
    Trial,
    Verdict,
)

COMMAND = ("python", "train.py", "--out", "{out}")
HIDDEN = Note(
    "existing-hidden", "2 checkpoints that lay in the folder were hidden: last.pt"
)


def make_settings(**more):
    values = {"command": COMMAND, "folder": Path("/srv/project"), "seed": 7, **more}
    return Settings(**values)


def make_rank(steps, *, rank=0, zero=100.0, saves=(5, 10, 15), joined=0, load=False):
    marks = tuple(
        StepMark(
            step=n, components={}, loss=2.0 / (joined + n), t_s=zero + 0.5 + n * 0.01
        )
        for n in range(1, steps + 1)
    )
    saved = tuple(
        SaveMark(
            n, at, ("last.pt",), None, zero + 0.5 + at * 0.01, zero + 0.52 + at * 0.01
        )
        for n, at in enumerate(saves, 1)
        if at <= steps
    )
    loads = (LoadMark("last.pt", "torch.load", 0, zero + 0.4),) if load else ()
    return RankTrace(
        rank=rank,
        states={},
        finish=None,
        steps=marks,
        saves=saved,
        loads=loads,
        counts={"step-end": steps},
    )


def make_attempt(number, ended, *, steps, ranks=1, zero=100.0, joined=0, **more):
    trace = AttemptTrace(
        ranks={
            r: make_rank(steps, rank=r, zero=zero, joined=joined, load=number > 1)
            for r in range(ranks)
        },
        world_size=ranks,
        processes=ranks,
        torch_seen=True,
    )
    status = {Ended.FINISHED: 0, Ended.FAILED: 1}.get(ended)
    values = {"exit_code": status, "wall_s": 1.2, "started_at_s": zero, **more}
    return Attempt(number=number, command=COMMAND, ended=ended, trace=trace, **values)


def make_baseline(**more):
    runs = (
        make_attempt(1, Ended.FINISHED, steps=20, wall_s=3.1),
        make_attempt(1, Ended.FINISHED, steps=20, wall_s=3.0),
    )
    control = Trial(
        0,
        "step-end:10",
        (
            make_attempt(1, Ended.RECLAIMED, steps=10),
            make_attempt(2, Ended.FINISHED, steps=10, joined=10),
        ),
    )
    values = {
        "runs": runs,
        "light": None,
        "control": control,
        "repeatable": True,
        "differs_at": None,
        "not_compared": (),
        "patterns": ("last.pt",),
        **more,
    }
    return Baseline(**values)


def make_trial(number, plan="step-end:12", *, joined=10, **more):
    attempts = (
        make_attempt(
            1, Ended.RECLAIMED, steps=12, kill_point=plan, reclaimed_at_s=100.9
        ),
        make_attempt(2, Ended.FINISHED, steps=10, zero=101.5, joined=joined),
    )
    token = make_token(plan, make_settings())
    return Trial(number, plan, attempts, wall_s=2.6, replay=token, **more)


def make_resume(*, joined=10, **changed):
    components = {
        "weights": joined,
        "buffers": joined,
        "optimizer": joined,
        "rates": joined,
        "rng.torch": joined,
        "batch": joined,
        **changed.pop("restored", {}),
    }
    values = {"newest_resume_point": 10, "lost_steps": 2, **changed}
    return Resume(attempt=2, joined=joined, restored={0: components}, **values)


RNG = Finding(
    "rng-not-restored",
    "after the resume at step 10, rng.torch was as at the start of a run, and dropout"
    " reads it",
    hint="save torch.get_rng_state() with the model, and set it back on resume",
    attempt=2,
    step=10,
    rank=0,
    component="rng.torch",
    where={"file": "train.py", "line": 40},
)
ORDER = Finding(
    "order-changed",
    "after the resume at step 10 the program got the batch of step 1: the order starts"
    " again at the seed",
    hint="save the position within the epoch and skip what was trained on",
    attempt=2,
    step=11,
    rank=0,
    component="batch",
)
PARTED = Divergence(
    step=11,
    rank=0,
    components=("rng.torch", "batch", "loss"),
    tensor="0.weight",
    elements=12,
    max_ulp=3,
    curve=((11, 12, 3), (12, 40, 1023), (13, 64, None)),
)


def held_pair(number):
    return make_trial(number), Judgement(
        Verdict.HELD, (), (), (make_resume(),), "bitwise"
    )


def violated_pair(number, *findings):
    resume = make_resume(
        restored={"rng.torch": "fresh", "batch": "fresh"}, divergence=PARTED
    )
    ledger = {"repeated": 8, "skipped": 8, "epochs": [{"epoch": 2, "repeated": 8}]}
    return make_trial(number), Judgement(
        Verdict.VIOLATED, findings, (), (resume,), "state", ledger
    )


def make_outcome(verdict, trials=(), **more):
    names = {}
    for trial, said in trials:
        for finding in said.findings:
            names.setdefault(finding.name, []).append(trial.number)
    values = {
        "settings": make_settings(),
        "holds_up_to": "bitwise" if verdict is Verdict.HELD else None,
        "baseline": make_baseline(),
        "findings": tuple((name, tuple(numbers)) for name, numbers in names.items()),
        "notes": (),
        "coverage": {
            "kill_points": len(trials),
            "of": 20,
            "crash_states": None,
            "skipped_as_equal": 0,
            "not_reached": 0,
        },
        "environment": {
            "python": "3.11.7",
            "torch": "2.13.0",
            "threads": 1,
            "packages_sha": "0123abcd",
            "mechanisms": {"namespaces": "user"},
        },
        "wall_s": 14.2,
        "cpu_s": 31.0,
        **more,
    }
    return Outcome(verdict=verdict, trials=tuple(trials), **values)


def held():
    return make_outcome(Verdict.HELD, [held_pair(n) for n in (1, 2, 3)])


def violated():
    return make_outcome(
        Verdict.VIOLATED,
        [
            violated_pair(1, RNG, ORDER),
            held_pair(2),
            violated_pair(3, RNG),
            violated_pair(4, RNG, ORDER),
        ],
        holds_up_to="resumes",
        notes=(("existing-hidden", ()),),
        unprotected=("other writable mounts: /data",),
    )


def unknown():
    return make_outcome(
        Verdict.UNKNOWN,
        baseline=make_baseline(repeatable=False, differs_at="the first batch"),
        findings=(("not-repeatable", ()),),
        trouble="two uninterrupted runs differ in the first batch, so nothing can be"
        " compared",
        hint="seed the program, or let spotchaos do it: --seed-program 1",
    )


def events(outcome, *, notes=(HIDDEN,)):
    """Return the events that lead to an outcome, with itself as the last."""
    told = [Started(outcome.settings, outcome.unprotected), PhaseStarted("baseline 1")]
    if outcome.baseline is not None:
        told.append(AttemptEnded("baseline 1", outcome.baseline.first))
        told.append(BaselineDone(outcome.baseline, tuple(notes)))
    for trial, said in outcome.trials:
        told.append(PhaseStarted(f"trial {trial.number}", trial.plan))
        told += [AttemptEnded(f"trial {trial.number}", a) for a in trial.attempts]
        told.append(TrialDone(trial, said))
    return [*told, outcome]
