"""From a scenario, a fixture or a marker to a campaign, and what a failure shows."""

import dataclasses
import shlex
import sys
import xml.etree.ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings

import spotchaos.pytest_support
from spotchaos.config.plan import Plan
from spotchaos.errors import PlanError
from spotchaos.model import Verdict
from spotchaos.strategies import plans
from tests.plugin.conftest import CLAIM


def test_a_scenario_that_comes_out_as_expected_passes(repository, campaign):
    repository.write()
    repository.pytest().assert_outcomes(passed=1)
    assert campaign.settings.kill_at == ("step-end:7",)
    assert campaign.settings.command[1:3] == ("-m", "spotchaos.training")


def test_a_failure_shows_what_was_expected_and_the_screen(
    repository, campaign, outcomes
):
    repository.write()
    campaign.outcome = outcomes.violated()
    result = repository.pytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*reclaim.toml, line 4: a reclaim between two saves*",
            "*expected the verdict held, found violated*",
        ]
    )
    result.stdout.fnmatch_lines(["*VIOLATED*", "*Replay: spotchaos replay sc1:*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_run_that_proved_nothing_is_never_a_pass(repository, campaign, outcomes):
    repository.write(CLAIM.replace('verdict = "held"', 'none-of = ["hang"]'))
    campaign.outcome = outcomes.unknown()
    result = repository.pytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*nothing was proved*"])


def test_a_plan_that_is_never_reached_is_said_at_its_line(
    repository, campaign, outcomes
):
    repository.write(CLAIM.replace('verdict = "held"', 'none-of = ["hang"]'))
    unknown = outcomes.unknown()
    campaign.outcome = dataclasses.replace(unknown, findings=(("not-reached", (1,)),))
    result = repository.pytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*reclaim.toml, line 2: *", "*nothing was proved*"])


def test_a_plan_beyond_the_end_of_the_run_is_said_at_its_line(repository, monkeypatch):
    def run(settings, listener, *, layer):
        raise PlanError("kill point 'step-end:7' lies beyond the horizon of 5 steps")

    monkeypatch.setattr(spotchaos.pytest_support, "run", run)
    repository.write()
    result = repository.pytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*reclaim.toml, line 2: *beyond the horizon*"])
    result.stdout.no_fnmatch_line("*Traceback*")


OUTSIDE = [
    pytest.param(
        "from spotchaos.pytest_plugin import spotchaos\n\nspotchaos.run('true')\n",
        "*test_outside.py:3*",
        id="at-import",
    ),
    pytest.param(
        "from spotchaos.pytest_plugin import spotchaos\n\nspotchaos()\n",
        "*ERROR collecting test_outside.py*",  # pytest itself names no line
        id="called",
    ),
    pytest.param(
        "import pytest\n\n@pytest.fixture(scope='session')\n"
        "def shared(spotchaos):\n    return spotchaos\n\n"
        "def test_it(shared):\n    pass\n",
        "*test_outside.py:3*",
        id="from-a-session",
    ),
]


@pytest.mark.parametrize(("text", "place"), OUTSIDE)
def test_a_fixture_outside_a_test_is_an_error_at_its_line(repository, text, place):
    repository.write(text, "test_outside.py")
    result = repository.pytest()
    assert result.ret != pytest.ExitCode.OK
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([place])


def test_a_program_that_is_missing_is_said_at_its_line(repository):
    repository.write(CLAIM.replace("kill-at", 'command = "no-such-program"\nkill-at'))
    result = repository.pytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*reclaim.toml, line 2: *no-such-program*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_the_users_program_takes_the_place_of_the_reference(repository, campaign):
    repository.write()
    repository.pytest(
        "--spotchaos-command=python train.py --lr 0.1",
        "--spotchaos-resume-command=python train.py --resume",
    )
    assert campaign.settings.command == ("python", "train.py", "--lr", "0.1")
    assert campaign.settings.resume_cmd == ("python", "train.py", "--resume")
    assert campaign.settings.folder == repository.path


def test_a_scenarios_own_options_win_over_those_of_the_command_line(
    repository, campaign
):
    repository.write("seed = 3\n" + CLAIM)
    repository.pytest(
        "--spotchaos-seed=9", "--spotchaos-trials=2", "--spotchaos-promise=state"
    )
    assert campaign.settings.seed == 3
    assert campaign.settings.trials == 2
    assert campaign.settings.promise == "state"


def test_a_specimen_is_a_program_of_ours(repository, campaign):
    repository.write("specimen = 'mended/diverged'\n" + CLAIM)
    repository.pytest().assert_outcomes(passed=1)
    assert campaign.settings.command[1].endswith("specimens/mended/diverged.py")


def test_each_campaign_leaves_its_report(repository, campaign):
    repository.write()
    repository.write(CLAIM.replace("time", "an hour"), "scenarios/hour.toml")
    repository.pytest("--spotchaos-report=reports").assert_outcomes(passed=2)
    names = sorted(path.name for path in (repository.path / "reports").iterdir())
    assert names == ["001.json", "002.json"]


SLOW = "slow = true\n" + CLAIM.replace("time", "an hour")


def test_slow_scenarios_can_be_left_out(repository, campaign):
    repository.write()
    repository.write(SLOW, "scenarios/hour.toml")
    (repository.path / "pytest.ini").write_text("[pytest]\nmarkers = slow: slow\n")
    result = repository.pytest("-m", "not slow")
    result.assert_outcomes(passed=1, deselected=1)


def test_scenarios_are_chosen_by_words_and_by_their_last_failure(
    repository, pytester, outcomes
):
    repository.write()
    repository.write(CLAIM.replace("time", "an hour"), "scenarios/hour.toml")
    result = repository.pytest_elsewhere("-k", "hour", outcome="violated")
    result.assert_outcomes(failed=1, deselected=1)
    again = repository.pytest_elsewhere("--lf", "--junit-xml=junit.xml")
    again.assert_outcomes(passed=1)
    case = ET.parse(repository.path / "junit.xml").find(".//testcase")
    assert case.get("name") == "a reclaim between two saves loses nothing but an hour"


def test_workers_share_the_scenarios(repository):
    repository.write()
    repository.write(CLAIM.replace("time", "an hour"), "scenarios/hour.toml")
    result = repository.pytest_elsewhere("-n2", "--spotchaos-report=reports")
    result.assert_outcomes(passed=2)
    assert len(list((repository.path / "reports").iterdir())) == 2


def test_ctrl_c_ends_the_session(repository):
    repository.write()
    repository.write(CLAIM.replace("time", "an hour"), "scenarios/hour.toml")
    result = repository.pytest_elsewhere(outcome="interrupted")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*KeyboardInterrupt*"])
    result.stdout.no_fnmatch_line("*passed*")


# --- the fixture `spotchaos` and its marker


@pytest.mark.interrupted("step-end:3", "step-end:5", signal="TERM", grace="2steps")
def test_the_marker_says_what_is_done_to_the_tests_program(spotchaos, campaign):
    spotchaos.run(["python", "train.py"])
    assert campaign.settings.kill_at == ("step-end:3", "step-end:5")
    assert campaign.settings.signal == "TERM"
    assert campaign.settings.grace_steps == 2


def test_options_are_those_of_the_command(spotchaos, campaign, tmp_path):
    spotchaos.run("python train.py 'a b'", kill_at="save-begin:2", max_lost_steps=4)
    assert campaign.settings.command == tuple(shlex.split("python train.py 'a b'"))
    assert campaign.settings.max_lost_steps == 4
    assert campaign.settings.folder == tmp_path


def test_an_unknown_option_names_the_near_miss(spotchaos):
    with pytest.raises(Exception, match="kill-tat") as raised:
        spotchaos.run("python train.py", kill_tat="step-end:3")
    assert "kill-at" in raised.value.hint


def train():
    """Stand for a test's own program."""


def test_a_function_is_a_program(spotchaos, campaign):
    spotchaos.run(train)
    assert campaign.settings.command[0] == sys.executable
    assert campaign.settings.command[2:] == (__file__, "train")


def test_a_function_within_another_is_none(spotchaos):
    def inner():
        pass

    with pytest.raises(Exception, match="inner") as raised:
        spotchaos.run(inner)
    assert raised.value.hint == "move the function to the top of its module"


def test_held_fails_with_the_screen(spotchaos, campaign, outcomes):
    campaign.outcome = outcomes.violated()
    report = spotchaos.run("python train.py")
    assert report.verdict is Verdict.VIOLATED
    with pytest.raises(pytest.fail.Exception, match="VIOLATED"):
        report.held()


def test_a_report_names_findings_and_what_was_restored(spotchaos, campaign, outcomes):
    campaign.outcome = outcomes.violated()
    report = spotchaos.run("python train.py")
    first = report.findings[0]
    assert report.of(first)[0].name == first
    assert report.restored["weights"] == 10


def test_an_interrupted_campaign_ends_the_session_from_a_test_too(
    spotchaos, campaign, outcomes
):
    campaign.outcome = dataclasses.replace(outcomes.held(), interrupted=True)
    with pytest.raises(KeyboardInterrupt):
        spotchaos.run("python train.py")


def test_a_failure_of_three_interruptions_shrinks_to_the_plan_that_is_told(
    spotchaos, campaign, outcomes, monkeypatch
):
    failed = []

    def run(settings, listener, *, layer):
        plan = Plan.parse(settings.kill_at[0])
        # What fails is a first interruption after the first save; it is met by a plan
        # of three interruptions, and none before that counts.
        fails = plan.points[0].occurrence > 5 and (failed or len(plan.points) == 3)
        if fails:
            failed.append(plan)
        return outcomes.violated() if fails else outcomes.held()

    monkeypatch.setattr("spotchaos.pytest_support.run", run)

    @settings(
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(plan=plans(max_step=30))
    def holds(plan):
        assert spotchaos.run("python train.py", kill_at=plan).held()

    with pytest.raises(pytest.fail.Exception, match="Replay: spotchaos replay sc1:"):
        holds()
    assert len(failed[0].points) == 3
    assert str(failed[-1]) == "step-end:6"
