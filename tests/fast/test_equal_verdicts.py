"""Forked or fresh, with every attempt run or with known ones skipped: one verdict."""

import sys

import pytest

from spotchaos.campaign.campaign import run
from spotchaos.config.settings import Settings
from spotchaos.events import AttemptEnded
from spotchaos.pytest_support.specimen_runs import read_table, try_program

WHOLE = """
import os, torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))
opt = torch.optim.Adam(net.parameters(), 0.01)
x, y = torch.randn(48, 4), torch.randn(48, 2)
start = 0
if os.path.exists("last.pt"):
    c = torch.load("last.pt")
    net.load_state_dict(c["net"]); opt.load_state_dict(c["opt"])
    torch.set_rng_state(c["rng"]); start = c["step"]
for step in range(start, 12):
    loss = torch.nn.functional.mse_loss(net(x[4 * step:4 * step + 4]), y[4 * step:4 * step + 4])
    opt.zero_grad(); loss.backward(); opt.step()
    if (step + 1) % 3 == 0:
        torch.save({"net": net.state_dict(), "opt": opt.state_dict(),
                    "rng": torch.get_rng_state(), "step": step + 1}, "last.tmp")
        os.replace("last.tmp", "last.pt")
"""
PROGRAMS = {
    "keeps everything": WHOLE,
    "forgets its random state": WHOLE.replace(
        'torch.set_rng_state(c["rng"]);', "pass;"
    ),
    "forgets its optimizer": WHOLE.replace('opt.load_state_dict(c["opt"])', ""),
    "starts at the wrong step": WHOLE.replace(
        'start = c["step"]', 'start = c["step"] - 1'
    ),
    "writes in place": WHOLE.replace('"last.tmp")\n', '"last.pt")\n').replace(
        'os.replace("last.tmp", "last.pt")', "pass"
    ),
    "logs each step": WHOLE.replace(
        "opt.step()\n", 'opt.step()\n    open("log", "a").write(f"{step}\\n")\n'
    ),
}
PLANS = (
    "step-end:4",
    "step-end:5",
    "step-end:6",
    "step-end:8",
    "save-begin:2",
    "step-end:7,step-end:1",
    "step-end:8,step-end:1",
    "step-end:1",
)


def outcome_of(folder, program, **given):
    (folder / "train.py").write_text(program)
    events = []
    settings = Settings(
        command=(sys.executable, "train.py"),
        folder=folder,
        kill_at=PLANS,
        no_cache=True,
        **given,
    )
    outcome = run(settings, events.append)
    assert outcome.trouble is None, (outcome.trouble, outcome.hint)
    attempts = sum(
        isinstance(e, AttemptEnded) and e.phase.startswith("trial") for e in events
    )
    return outcome, attempts


def said(outcome):
    return {
        trial.plan: (
            judgement.verdict,
            sorted((f.name, f.attempt, f.step) for f in judgement.findings),
            [
                (r.joined, r.lost_steps, r.newest_resume_point)
                for r in judgement.resumes
            ],
            judgement.holds_up_to,
        )
        for trial, judgement in outcome.trials
    }


def decided(outcome):
    """Return what was said, without what a flaw that is a race leaves to chance.

    Of which step a snapshot is that was torn while it was written, no run tells again.
    """
    return {
        plan: (verdict, findings, [resume[:2] for resume in resumes], holds)
        for plan, (verdict, findings, resumes, holds) in said(outcome).items()
    }


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("keeps everything", marks=pytest.mark.slow),
        "forgets its random state",
    ],
)
def test_skipping_what_is_known_changes_no_verdict(tmp_path, name):
    quick, few = outcome_of(tmp_path, PROGRAMS[name])
    whole, many = outcome_of(tmp_path, PROGRAMS[name], no_skip=True)
    assert said(quick) == said(whole)
    assert quick.coverage["skipped_as_equal"] >= len(PLANS) - 2
    assert whole.coverage["skipped_as_equal"] == 0
    assert few < many


OF_KILLS = {"promise", "max-lost-steps", "seed-program"}


def is_shown_by_kills(row):
    return row.ranks is None and set(row.options) <= OF_KILLS


def mutants():
    """Yield what kills at steps show: the same plans can be carried out in each way."""
    for name, row in read_table().items():
        if row.mutant is not None and not row.explore and is_shown_by_kills(row):
            yield pytest.param(row, id=name)


def others():
    """Yield both programs of what signals, notices, faults or several ranks show."""
    for name, row in read_table().items():
        if row.explore or is_shown_by_kills(row):
            continue
        for program in (row.mutant, row.mended):
            if program is not None:
                yield pytest.param(row, program, id=f"{program.parent.name}-{name}")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("row", list(mutants()))
def test_every_way_of_carrying_out_convicts_alike(tmp_path, monkeypatch, row):
    def outcome(way, **options):
        folder = tmp_path / way
        folder.mkdir()
        return try_program(
            row,
            row.mutant,
            folder=folder,
            kill_at=["random"],
            trials=3,
            seed=3,
            no_cache=True,
            **options,
        )

    quick, whole = outcome("quick"), outcome("whole", no_skip=True)
    monkeypatch.setenv("SPOTCHAOS_PATH", "cold")
    fresh = outcome("fresh", no_skip=True)
    assert {trial.path for trial, _ in fresh.trials} <= {"cold"}
    told = decided if row.name == "torn_snapshot" else said
    assert told(quick) == told(whole) == told(fresh)
    assert quick.verdict == whole.verdict == fresh.verdict


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("row", "program"), list(others()))
def test_what_is_more_than_a_kill_is_judged_alike(tmp_path, monkeypatch, row, program):
    def outcome(way):
        folder = tmp_path / way
        folder.mkdir()
        return try_program(row, program, folder=folder, no_cache=True)

    def judged(outcome):
        return outcome.verdict, sorted({name for name, _ in outcome.findings})

    forked = outcome("forked")
    monkeypatch.setenv("SPOTCHAOS_PATH", "cold")
    fresh = outcome("fresh")
    assert {trial.path for trial, _ in fresh.trials} <= {"cold"}
    assert judged(forked) == judged(fresh)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", PROGRAMS)
def test_fresh_processes_say_what_forked_ones_say(tmp_path, monkeypatch, name):
    quick, _ = outcome_of(tmp_path, PROGRAMS[name])
    assert {trial.path for trial, _ in quick.trials} == {"warm"}
    whole, _ = outcome_of(tmp_path, PROGRAMS[name], no_skip=True)
    monkeypatch.setenv("SPOTCHAOS_PATH", "cold")
    fresh, _ = outcome_of(tmp_path, PROGRAMS[name], no_skip=True)
    assert {trial.path for trial, _ in fresh.trials} == {"cold"}
    assert said(quick) == said(whole) == said(fresh)
