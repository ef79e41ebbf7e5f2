"""An exploration that is cut short or loses its zygote says so, and loses no state."""

from dataclasses import dataclass, replace

import pytest

from spotchaos.config.settings import Settings
from spotchaos.errors import UsageError
from spotchaos.explore import exploration, resuming
from spotchaos.explore.exploration import Exploration, explore
from spotchaos.explore.resuming import Starter
from spotchaos.launch.zygote.zygote import ZygoteGoneError


@dataclass(frozen=True)
class FakeStage:
    zygote: object | None


def test_runs_begin_again_in_fresh_processes_once_the_zygote_is_gone():
    starter = Starter(FakeStage(zygote="alive"))
    seen = []

    def run(trial_context):
        seen.append(trial_context.zygote)
        if trial_context.zygote is not None:
            raise ZygoteGoneError("it died")
        return "done"

    assert starter.carry_out(run) == "done"
    assert starter.lost == "it died"
    assert starter.carry_out(run) == "done"
    assert seen == ["alive", None, None]


def test_while_the_zygote_lives_runs_are_forked():
    starter = Starter(FakeStage(zygote="alive"))
    assert starter.carry_out(lambda trial_context: trial_context.zygote) == "alive"
    assert starter.lost is None
    assert starter.cold == FakeStage(zygote=None)


def test_a_program_that_saves_to_a_store_is_not_explored(tmp_path):
    command = ("python", "-m", "spotchaos.training", "--store", "s3://bucket/run")
    with pytest.raises(UsageError, match="object store") as raised:
        explore(Settings(command=command, folder=tmp_path), lambda event: None)
    assert "--fault" in raised.value.hint


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_zygote_that_dies_in_between_costs_no_state(quick, monkeypatch):
    runs = []
    real = resuming.run_attempt

    def dying(trial_context, *arguments, **more):
        runs.append(trial_context.zygote)
        if len(runs) > 2 and trial_context.zygote is not None:
            raise ZygoteGoneError("the zygote ended with status -9")
        return real(trial_context, *arguments, **more)

    monkeypatch.setattr(resuming, "run_attempt", dying)
    # Fresh processes take long; kills during a resume would add dozens.
    monkeypatch.setattr(exploration, "MOST_RESUMES", 0)
    outcome = explore(quick, lambda event: None)
    told = outcome.coverage["crash_states"]
    assert any(zygote is not None for zygote in runs)
    assert any(zygote is None for zygote in runs)
    assert told["held"] == told["distinct"] > 5
    assert told["not_visited"] == 0
    assert str(outcome.verdict) == "held"
    assert "cold-path" in dict(outcome.notes)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_the_budget_leaves_unvisited_is_in_the_verdict(quick, monkeypatch):
    asked = []

    def is_out(self):
        asked.append(1)
        return len(asked) > 2

    monkeypatch.setattr(Exploration, "is_out_of_budget", is_out)
    outcome = explore(replace(quick, budget_s=1.0), lambda event: None)
    told = outcome.coverage["crash_states"]
    assert told["held"] == 2
    assert told["not_visited"] == told["distinct"] - 2 > 3
    assert str(outcome.verdict) == "unknown"
    assert "were not resumed from" in outcome.trouble
    assert any("--budget" in why for why in told["why_not_visited"])
