import dataclasses
import json
from importlib import resources

import jsonschema
import pytest

from spotchaos.model import Ended, Judgement, Verdict
from spotchaos.report.document import make_document
from spotchaos.report.formats import render

SCHEMA = json.loads(
    resources.files("spotchaos.report").joinpath("schema1.json").read_text()
)


@pytest.mark.parametrize("name", ["held", "violated", "unknown"])
def test_a_report_validates_against_the_published_schema(document, name):
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(render(document(name))))


def test_the_schema_itself_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", ["held", "violated", "unknown"])
def test_every_key_that_is_written_is_in_the_schema(document, name):
    written = document(name)
    assert set(written) <= set(SCHEMA["properties"])
    trials = SCHEMA["$defs"]["trial"]["properties"]
    attempts = SCHEMA["$defs"]["attempt"]["properties"]
    for trial in written["trials"]:
        assert set(trial) <= set(trials)
        for attempt in trial["attempts"]:
            assert set(attempt) <= set(attempts)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("verdict", "fine", id="unknown-verdict"),
        pytest.param("promise", "all", id="unknown-promise"),
        pytest.param("schema", 2, id="newer-schema"),
        pytest.param("seed", "7", id="seed-as-text"),
        pytest.param("trials", {}, id="trials-as-object"),
    ],
)
def test_the_schema_refuses_a_wrong_report(document, key, value):
    wrong = {**document("violated"), key: value}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


def test_an_attempt_tells_where_it_joined_and_what_was_restored(document):
    attempt = document("violated")["trials"][0]["attempts"][1]
    assert attempt["started_from"] == 10
    assert attempt["lost_steps"] == 2
    assert attempt["restored"]["0"]["rng.torch"] == "fresh"
    assert attempt["restored"]["0"]["batch"] == "fresh"
    assert attempt["divergence"]["max_ulp"] == 3
    assert attempt["divergence"]["curve"][1] == {
        "step": 12,
        "elements": 40,
        "max_ulp": 1023,
    }


def test_a_trial_without_a_token_gets_the_one_of_its_plan(outcomes):
    trial, said = outcomes.held_pair(1)
    outcome = outcomes.make_outcome(
        Verdict.HELD, [(dataclasses.replace(trial, replay=""), said)]
    )
    assert make_document(outcome)["trials"][0]["replay"] == trial.replay


def test_the_timeline_is_in_order_and_in_steps_of_the_baseline(document):
    moments = document("violated")["trials"][0]["timeline"]
    times = [m["t_s"] for m in moments]
    assert times == sorted(times)
    assert [m["what"] for m in moments if m["attempt"] == 1][-1] == "reclaim"
    reclaim = next(m for m in moments if m["what"] == "reclaim")
    assert reclaim["step"] == 12
    assert moments[-1]["what"] == "finish"
    assert moments[-1]["step"] == 20


def test_losses_of_a_resumed_attempt_stand_at_steps_of_the_baseline(document):
    series = document("violated")["series"]["loss"]
    assert series["baseline"][0] == [1, 2.0]
    assert series["1.2"][0] == [11, round(2 / 11, 6)]


def test_a_long_run_is_thinned_with_its_last_step_kept(outcomes):
    baseline = outcomes.make_baseline(
        runs=(outcomes.make_attempt(1, Ended.FINISHED, steps=5001),)
    )
    outcome = outcomes.make_outcome(Verdict.HELD, baseline=baseline)
    points = make_document(outcome)["series"]["loss"]["baseline"]
    assert len(points) < 450
    assert points[-1][0] == 5001


def test_ledgers_of_trials_are_added_up(document):
    ledger = document("violated")["ledger"]
    assert (ledger["repeated"], ledger["skipped"]) == (24, 24)
    assert [epoch["trial"] for epoch in ledger["epochs"]] == [1, 3, 4]


def test_a_ledger_of_ids_is_counted(outcomes):
    said = Judgement(Verdict.HELD, (), (), (), None, {"skipped": ["a", "b"]})
    outcome = outcomes.make_outcome(Verdict.HELD, [(outcomes.make_trial(1), said)])
    assert make_document(outcome)["ledger"]["skipped"] == 2


def test_a_campaign_that_failed_at_once_has_a_report(outcomes):
    outcome = outcomes.make_outcome(Verdict.UNKNOWN, baseline=None, trouble="no torch")
    text = render(make_document(outcome))
    jsonschema.validate(json.loads(text), SCHEMA)
    assert json.loads(text)["baseline"] is None


def test_a_number_that_json_lacks_becomes_null(outcomes):
    outcome = outcomes.make_outcome(
        Verdict.HELD, coverage={"kill_points": float("nan")}
    )
    assert json.loads(render(make_document(outcome)))["coverage"]["kill_points"] is None


def test_tokens_are_masked_without_being_asked_for(outcomes):
    secret = "hf_" + "a1B2c3D4" * 4
    settings = outcomes.make_settings(command=("python", "t.py", f"--token={secret}"))
    outcome = outcomes.make_outcome(Verdict.HELD, settings=settings)
    assert secret not in render(make_document(outcome))


def test_the_tail_of_a_failed_attempt_is_kept(outcomes):
    trial, said = outcomes.held_pair(1)
    failed = dataclasses.replace(
        trial.attempts[1], ended=Ended.FAILED, output_tail="ValueError: no"
    )
    trial = dataclasses.replace(trial, attempts=(trial.attempts[0], failed))
    outcome = outcomes.make_outcome(Verdict.HELD, [(trial, said)])
    attempts = make_document(outcome)["trials"][0]["attempts"]
    assert attempts[1]["output_tail"] == "ValueError: no"
    assert "output_tail" not in attempts[0]


def test_an_attempt_that_was_told_says_which_window_was_asked_for(outcomes):
    trial, said = outcomes.held_pair(1)
    told = dataclasses.replace(trial.attempts[0], notice_at_s=100.6, signal="TERM")
    trial = dataclasses.replace(trial, attempts=(told, trial.attempts[1]))
    settings = outcomes.make_settings(grace_s=4.0)
    outcome = outcomes.make_outcome(said.verdict, [(trial, said)], settings=settings)
    first, second = make_document(outcome)["trials"][0]["attempts"]
    assert first["grace_s"] == 4.0
    assert "grace_s" not in second


def test_a_notice_is_in_the_report_and_its_speed_on_the_screen(outcomes):
    from spotchaos.model import NoticePlayed
    from spotchaos.report.screen import plain, screen

    trial, said = outcomes.held_pair(1)
    played = NoticePlayed(
        story="aws",
        provider="aws",
        grace_s=120.0,
        time_scale=40.0,
        deadline_at_s=103.6,
        reclaimed=True,
        asked=9,
        asked_after=2,
    )
    told = dataclasses.replace(trial.attempts[0], notice_at_s=100.6, notice=played)
    trial = dataclasses.replace(trial, attempts=(told, trial.attempts[1]))
    document = make_document(outcomes.make_outcome(said.verdict, [(trial, said)]))
    schema = resources.files("spotchaos.report").joinpath("schema1.json").read_text()
    jsonschema.validate(document, json.loads(schema))
    assert document["trials"][0]["attempts"][0]["notice"]["time_scale"] == 40.0
    shown = " ".join(plain(screen(document)).split())
    assert "the notice aws was played at 40 cloud seconds a second" in shown


def test_faults_that_struck_are_in_the_report_and_on_the_screen(outcomes):
    from spotchaos.model import Injected
    from spotchaos.report.screen import plain, screen

    trial, said = outcomes.violated_pair(1)
    injected = (
        Injected("s3-503:2+", "store", 3, at_s=100.5, path="bucket/run/state.pt"),
        Injected("enospc:9", "error", 0),
    )
    first = dataclasses.replace(trial.attempts[0], injected=injected)
    trial = dataclasses.replace(trial, attempts=(first, trial.attempts[1]))
    document = make_document(outcomes.make_outcome(said.verdict, [(trial, said)]))
    schema = resources.files("spotchaos.report").joinpath("schema1.json").read_text()
    jsonschema.validate(document, json.loads(schema))
    told = document["trials"][0]
    assert told["attempts"][0]["faults"] == [
        {
            "fault": "s3-503:2+",
            "kind": "store",
            "struck": 3,
            "path": "bucket/run/state.pt",
        },
        {"fault": "enospc:9", "kind": "error", "struck": 0, "path": None},
    ]
    assert "faults" not in told["attempts"][1]
    assert [m["t_s"] for m in told["timeline"] if m["what"] == "fault"] == [0.5]
    shown = " ".join(plain(screen(document)).split())
    assert "the fault s3-503:2+ struck 3 times, first 'bucket/run/state.pt'" in shown
    assert "enospc" not in shown
