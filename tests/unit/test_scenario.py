"""Scenario files: what they say, what they may not say, and what they expect."""

import pytest

from spotchaos.config.settings import Settings
from spotchaos.errors import ScenarioError
from spotchaos.events import Outcome
from spotchaos.model import Judgement, Resume, Trial, Verdict
from spotchaos.pytest_support.scenario_file import Expect, read_scenario

TEXT = """\
# A comment comes first.
summary = "a reclaim loses nothing but time"
ranks = 2
kill-at = ["step-end:7", "random"]
command = "python train.py --name 'a b'"

[expect]
verdict = "violated"
findings = ["rng-not-restored"]
none-of = ["order-changed"]
restored = { weights = 5, "rng.torch" = "fresh" }
"""


@pytest.fixture
def write(tmp_path):
    def scenario(text=TEXT):
        path = tmp_path / "reclaim.toml"
        path.write_text(text)
        return path

    return scenario


def make_outcome(
    tmp_path, verdict=Verdict.VIOLATED, findings=(), restored=None, **more
):
    resumes = []
    if restored is not None:
        resumes = [Resume(2, 5, {0: restored}, 5, 2)]
    judgement = Judgement(verdict, (), (), tuple(resumes), None)
    return Outcome(
        **{
            "settings": Settings(command=("python",), folder=tmp_path),
            "verdict": verdict,
            "holds_up_to": "resumes",
            "baseline": None,
            "trials": ((Trial(1, "step-end:7", ()), judgement),),
            "findings": tuple((name, (1,)) for name in findings),
            "notes": (),
            "coverage": {},
            "environment": {},
            **more,
        }
    )


def test_a_scenario_is_read_whole(write):
    scenario = read_scenario(write())
    assert scenario.summary == "a reclaim loses nothing but time"
    assert scenario.command == ("python", "train.py", "--name", "a b")
    assert scenario.options == {"ranks": 2, "kill-at": ("step-end:7", "random")}
    assert scenario.expect.verdict is Verdict.VIOLATED
    assert scenario.expect.restored == {"weights": 5, "rng.torch": "fresh"}


def test_a_key_is_found_at_its_line(write):
    scenario = read_scenario(write())
    assert scenario.place("kill-at") == "reclaim.toml, line 4"
    assert scenario.place_of("--ranks is 2") == "reclaim.toml, line 3"
    assert scenario.place_of("the command is not there") == "reclaim.toml, line 5"


WRONG = [
    pytest.param("ranks = 2", "rank = 2", "line 3: unknown key 'rank'", id="key"),
    pytest.param("ranks = 2", 'ranks = "two"', "line 3", id="option"),
    pytest.param(
        "none-of", "non-of", "line 10: unknown key 'non-of'", id="expectation"
    ),
    pytest.param(
        '["order-changed"]', '["order-changd"]', "line 10: none-of is", id="finding"
    ),
    pytest.param(
        '["order-changed"]', '["rng-not-restored"]', "both wanted and", id="both"
    ),
    pytest.param("weights = 5", "wieghts = 5", "line 11", id="component"),
    pytest.param("weights = 5", 'weights = "old"', "line 11", id="origin"),
    pytest.param('summary = "a', 'summary = "" # "a', "line 2: no summary", id="claim"),
]


@pytest.mark.parametrize(("old", "new", "said"), WRONG)
def test_what_cannot_be_is_refused_at_its_line(write, old, new, said):
    assert old in TEXT
    with pytest.raises(ScenarioError, match=said):
        read_scenario(write(TEXT.replace(old, new, 1)))


def test_the_near_miss_is_named(write):
    with pytest.raises(ScenarioError) as raised:
        read_scenario(write(TEXT.replace("ranks", "rnaks")))
    assert "'ranks'" in raised.value.hint


UNMET = [
    pytest.param(
        Expect(verdict=Verdict.HELD), "expected the verdict held", id="verdict"
    ),
    pytest.param(Expect(findings=("hang",)), "expected the finding hang", id="finding"),
    pytest.param(Expect(any_of=("hang", "diverged")), "expected one of", id="any-of"),
    pytest.param(
        Expect(none_of=("lost-work",)), "did not expect the finding", id="none-of"
    ),
    pytest.param(
        Expect(notes=("cold-path",)), "expected the note cold-path", id="note"
    ),
    pytest.param(Expect(promise="state"), "holds up to 'resumes'", id="promise"),
    pytest.param(
        Expect(restored={"weights": 10}),
        "expected weights restored from 10, found 5",
        id="restored",
    ),
]


@pytest.mark.parametrize(("expect", "said"), UNMET)
def test_an_expectation_that_is_not_met_is_said(tmp_path, expect, said):
    outcome = make_outcome(tmp_path, findings=["lost-work"], restored={"weights": 5})
    unmet = expect.unmet(outcome)
    assert len(unmet) == 1
    assert said in unmet[0]


def test_expectations_that_are_met_say_nothing(tmp_path):
    expect = Expect(
        verdict=Verdict.VIOLATED,
        findings=("lost-work",),
        any_of=("lost-work", "hang"),
        none_of=("hang",),
        restored={"weights": 5},
        promise="resumes",
    )
    outcome = make_outcome(tmp_path, findings=["lost-work"], restored={"weights": 5})
    assert expect.unmet(outcome) == []


def test_a_restored_component_needs_a_resume(tmp_path):
    unmet = Expect(restored={"weights": 5}).unmet(make_outcome(tmp_path))
    assert unmet == ["expected a resume, there was none"]


def test_an_unknown_verdict_must_be_expected_by_name(tmp_path):
    outcome = make_outcome(tmp_path, Verdict.UNKNOWN, trouble="it never ended")
    assert Expect(none_of=("hang",)).unmet(outcome) == [
        "nothing was proved: it never ended"
    ]
    assert Expect(verdict=Verdict.UNKNOWN).unmet(outcome) == []
