import json
import sys
import types

import pytest

from spotchaos.config.replay_token import make_token
from spotchaos.findings import FINDINGS, NOTES
from spotchaos.model import Verdict
from spotchaos.report.document import make_document
from spotchaos.report.formats import render


@pytest.fixture
def report(outcomes, tmp_path):
    path = tmp_path / "report.json"
    path.write_text(render(make_document(outcomes.violated())))
    return path


def test_a_token_is_replayed_with_its_own_settings(spotchaos, campaign, outcomes):
    settings = outcomes.make_settings(signal="TERM", grace_s=3.0, promise="state")
    token = make_token("step-end:12", settings)
    result = spotchaos("replay", token, "--", "python", "t.py", "--x")
    assert result.exit_code == 0
    found = campaign.settings
    assert found.command == ("python", "t.py", "--x")
    assert (found.kill_at, found.trials) == (("step-end:12",), 1)
    assert (found.signal, found.grace_s, found.promise) == ("TERM", 3.0, "state")


def test_what_is_given_wins_over_the_token(spotchaos, campaign, outcomes):
    token = make_token("step-end:12", outcomes.make_settings(promise="state"))
    args = ("--promise", "samples", "--grace", "2steps", "--timeout", "5")
    spotchaos("replay", token, *args, "--", "python", "t.py")
    found = campaign.settings
    assert (found.promise, found.grace_steps, found.timeout_s) == ("samples", 2, 5.0)


def test_a_report_is_replayed_with_its_own_command(spotchaos, campaign, report):
    spotchaos("replay", str(report), "--trial", "3")
    assert campaign.settings.command == ("python", "train.py", "--out", "{out}")
    assert campaign.settings.kill_at == ("step-end:12",)


def test_a_report_is_replayed_with_its_own_command_to_resume(
    spotchaos, campaign, outcomes, tmp_path
):
    resume = ("python", "train.py", "--resume", "last one.pt")
    settings = outcomes.make_settings(resume_cmd=resume)
    outcome = outcomes.make_outcome(
        Verdict.VIOLATED, [outcomes.violated_pair(1, outcomes.RNG)], settings=settings
    )
    path = tmp_path / "report.json"
    path.write_text(render(make_document(outcome)))
    spotchaos("replay", str(path))
    assert campaign.settings.resume_cmd == resume


@pytest.mark.parametrize(
    ("args", "said"),
    [
        pytest.param(["sc1:%%%"], "is damaged", id="damaged"),
        pytest.param(["sc9:abc"], "newer release", id="newer"),
        pytest.param(["step-end:3"], "is no replay token", id="plan"),
        pytest.param(["missing.json"], "there is no report", id="missing"),
        pytest.param(["sc1:eyJwbGFuIjoic3RlcC1lbmQ6MTIifQ", "--trial", "2"], "--trial goes with", id="trial-of-token"),
    ],
)  # fmt: skip
def test_what_cannot_be_replayed_says_why(spotchaos, campaign, args, said):
    result = spotchaos("replay", *args)
    assert result.exit_code == 2
    assert said in result.stderr
    assert campaign.settings is None


def test_a_trial_that_a_report_lacks_is_named(spotchaos, campaign, report):
    result = spotchaos("replay", str(report), "--trial", "9")
    assert result.exit_code == 2
    assert "has no trial 9" in result.stderr
    assert "its trials are 1 to 4" in result.stderr


def test_a_report_is_shown_again(spotchaos, report, tmp_path):
    result = spotchaos("report", str(report), "--html", "r.html", "--junit", "r.xml")
    assert result.exit_code == 0
    assert result.stdout.startswith("VIOLATED  bitwise")
    assert "<!doctype html>" in (tmp_path / "r.html").read_text()
    assert "<testsuites" in (tmp_path / "r.xml").read_text()


def test_two_reports_are_compared(spotchaos, outcomes, report, tmp_path):
    held = tmp_path / "held.json"
    held.write_text(render(make_document(outcomes.held())))
    worse = spotchaos("report", str(held), str(report))
    assert worse.exit_code == 1
    assert "new        rng-not-restored" in worse.stdout
    better = spotchaos("report", str(report), str(held))
    assert better.exit_code == 0
    assert "fixed      rng-not-restored" in better.stdout


def test_a_draft_alone_can_be_piped(spotchaos, report):
    result = spotchaos("report", str(report), "--issue", "2")
    assert result.exit_code == 0
    assert result.stdout.lstrip().startswith("# After an interruption")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"schema": 2}, "this release reads schema 1", id="newer"),
        pytest.param({"trials": None}, "is damaged", id="damaged"),
    ],
)
def test_a_report_that_cannot_be_read_is_a_usage_error(spotchaos, report, change, said):
    report.write_text(json.dumps({**json.loads(report.read_text()), **change}))
    result = spotchaos("report", str(report))
    assert result.exit_code == 2
    assert said in result.stderr


def test_explain_lists_every_name(spotchaos):
    result = spotchaos("explain")
    assert result.exit_code == 0
    for name in (*FINDINGS, *NOTES):
        assert f"\n  {name} " in result.stdout


def test_explain_prints_a_page(spotchaos):
    result = spotchaos("explain", "rng-not-restored")
    assert result.exit_code == 0
    assert result.stdout.startswith("# rng-not-restored\n")


def test_explore_arrives_later_and_says_so(spotchaos):
    from spotchaos.config.settings import NOT_YET

    result = spotchaos("explore", "--deviations", "2", "--", "python", "t.py")
    if "explore" in NOT_YET:
        assert result.exit_code == 2
        assert "does not have the command 'explore'" in result.stderr


def test_explore_takes_no_kill_point(spotchaos):
    result = spotchaos("explore", "--kill-at", "random", "--", "python", "t.py")
    assert result.exit_code == 2
    assert "unknown option '--kill-at'" in result.stderr


def test_specimens_are_listed_with_what_convicts_them(spotchaos):
    result = spotchaos("specimens", "lost_work", "rule_plateau")
    assert result.exit_code == 0
    assert [line.split()[:4] for line in result.stdout.splitlines()[1:]] == [
        ["lost_work", "lost-work", "step-end:23,", "random"],
        ["rule_plateau", "held", "step-end:16,", "random"],
    ]
    assert "One flaw: it saves every twelve steps" in result.stdout


def test_an_unknown_specimen_names_the_near_miss(spotchaos):
    result = spotchaos("specimens", "lost_wrok")
    assert result.exit_code == 2
    assert "'lost_work'" in result.stderr


def test_specimens_that_are_not_run_have_nothing_beside_them(spotchaos):
    result = spotchaos("specimens", "--by", "edges", "lost_work")
    assert result.exit_code == 2
    assert "--by says nothing without --run" in result.stderr


@pytest.fixture
def machine(monkeypatch):
    """Put a machine of our making in the place of this one."""

    class Mechanisms:
        lacks = ()

        def as_report(self):
            return {"namespaces": "user", "overlay": "no: refused"}

        def unprotected(self):
            return list(self.lacks)

    found = Mechanisms()
    launch = types.ModuleType("spotchaos.launch.isolation.mechanisms")
    launch.find_mechanisms = lambda: found
    files = types.ModuleType("spotchaos.launch.supervisor.supervisor")
    files.supervisor_available = lambda: (False, "seccomp refuses a listener")
    monkeypatch.setitem(sys.modules, launch.__name__, launch)
    monkeypatch.setitem(sys.modules, files.__name__, files)
    return found


def test_doctor_says_what_the_machine_can_do(spotchaos, machine):
    machine.lacks = ("files outside the working folder",)
    result = spotchaos("doctor")
    assert result.exit_code == 0
    lines = dict(
        line.split("  ", 1) for line in result.stdout.splitlines() if "  " in line
    )
    assert lines["namespaces"].strip() == "user"
    assert lines["file sites"].strip() == "off: seccomp refuses a listener"
    assert "not protected: files outside the working folder" in result.stdout


def test_doctor_finds_torch_without_importing_it(spotchaos, machine):
    import importlib.metadata

    before = "torch" in sys.modules
    result = spotchaos("doctor")
    assert ("torch" in sys.modules) is before
    assert importlib.metadata.version("torch") in result.stdout


def test_doctor_is_content_where_nothing_lacks(spotchaos, machine):
    assert "Every attempt is isolated" in spotchaos("doctor").stdout
