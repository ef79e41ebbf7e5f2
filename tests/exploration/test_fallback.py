"""What is done, and said, where no listener for file ops can be installed."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from spotchaos.errors import HarnessError
from spotchaos.explore.exploration import explore
from spotchaos.explore.recorder import Recorder
from spotchaos.explore.resuming import Starter
from spotchaos.launch.supervisor.strace import strace_available
from spotchaos.model import Attempt, AttemptTrace, Ended, Note

TRACED, WHY = strace_available()


@pytest.fixture
def refused(monkeypatch):
    """Let the machine have no listener to install."""
    monkeypatch.setattr(
        "spotchaos.campaign.baseline.supervisor_available",
        lambda: (False, "EBUSY: taken"),
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not TRACED, reason=f"no strace here: {WHY}")
def test_strace_records_instead_and_says_what_it_does_not_see(refused, quick):
    outcome = explore(quick, lambda event: None)
    told = outcome.coverage["crash_states"]
    assert told["mechanism"] == "strace"
    assert told["held"] > 5
    assert told["violated"] == 0
    assert any("recorded by strace" in why for why in told["why_not_visited"])
    assert str(outcome.verdict) == "held"


@pytest.fixture
def no_strace(monkeypatch):
    """Let the machine have no strace either."""
    monkeypatch.setattr(
        "spotchaos.explore.recorder.strace_available", lambda: (False, "no strace")
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_python_records_what_it_announces_and_names_what_it_does_not(
    refused, no_strace, quick
):
    outcome = explore(replace(quick, power_loss="all"), lambda event: None)
    told = outcome.coverage["crash_states"]
    assert told["mechanism"] == "python"
    assert told["by_model"].keys() == {"kill"}
    assert told["held"] == told["distinct"] > 5
    [why] = [one for one in told["why_not_visited"] if "within Python" in one]
    assert "fsync" in why
    assert "compiled code" in why
    assert str(outcome.verdict) == "held"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_python_sees_a_save_in_place_torn(refused, no_strace, quick):
    program = quick.folder / "quick.py"
    text = program.read_text()
    program.write_text(
        text.replace('"tmp.pt")', "last)").replace('os.replace("tmp.pt", last)', "pass")
    )
    outcome = explore(quick, lambda event: None)
    assert str(outcome.verdict) == "violated"
    torn = outcome.extra["classes"]
    assert {entry["finding"] for entry in torn} == {"torn-checkpoint"}
    # The file is emptied first, and all that follows is of that flaw.
    assert {entry["operation"] for entry in torn} == {"creat last.pt"}
    line = torn[0]["where"]["line"]
    assert "torch.save" in program.read_text().splitlines()[line - 1]


def test_several_ranks_need_more_than_python(no_strace):
    baseline = SimpleNamespace(world_size=2)
    site_index = SimpleNamespace(file_ops=None)
    notes = [Note("inside-save-left-out", "file sites are off: EBUSY: taken")]
    baseline_context = SimpleNamespace(
        baseline=baseline, site_index=site_index, notes=notes
    )
    with pytest.raises(HarnessError, match="EBUSY: taken; no strace"):
        Recorder(baseline_context, Starter(None))


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ('sudo: The "no new privileges" flag is set', "sudo and setuid programs"),
        ("ValueError: no rows", "spotchaos run --kill-at file-op:1"),
    ],
)
def test_a_program_that_fails_once_it_is_recorded_is_told_what_it_is_kept_from(
    no_strace, monkeypatch, said, hint
):
    trace = AttemptTrace({}, world_size=1, processes=1, torch_seen=True)
    attempt = Attempt(
        1, ("python",), Ended.FAILED, 1, trace, wall_s=1.0, output_tail=said
    )
    monkeypatch.setattr(
        "spotchaos.explore.recorder.python_recorded_run",
        lambda trial_context, view: (attempt, None),
    )
    trial_context = SimpleNamespace(
        program=SimpleNamespace(allow_network=False, removed=()),
        new_view=lambda name: SimpleNamespace(close=lambda: None),
    )
    baseline_context = SimpleNamespace(
        baseline=SimpleNamespace(world_size=1),
        site_index=SimpleNamespace(file_ops=None),
        trial_context=trial_context,
    )
    recorder = Recorder(baseline_context, SimpleNamespace(cold=None))
    with pytest.raises(HarnessError, match="status 1, its last line was") as caught:
        recorder.run()
    assert hint in (caught.value.hint or "")
