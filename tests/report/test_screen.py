import io
import shlex
from dataclasses import replace

import pytest

from spotchaos.model import Finding, Judgement, Note, Verdict
from spotchaos.report.document import make_document
from spotchaos.report.screen import plain, screen, trials_text
from spotchaos.report.terminal import TextReport
from spotchaos.trace.timing import Measured, Timing


@pytest.mark.parametrize("name", ["held", "violated", "unknown"])
def test_the_screen_is_as_kept(document, snapshot, name):
    snapshot(f"screen_{name}.txt", plain(screen(document(name))))


@pytest.mark.parametrize("name", ["held", "violated", "unknown"])
def test_the_verdict_comes_first_and_all_fits_one_screen(document, name):
    lines = plain(screen(document(name))).splitlines()
    assert lines[0].startswith(name.upper())
    assert len(lines) <= 30
    assert all(len(line) <= 88 for line in lines if "Replay:" not in line)


def test_a_finding_of_many_trials_is_told_once(outcomes):
    pairs = [outcomes.violated_pair(n, outcomes.RNG) for n in range(1, 41)]
    outcome = outcomes.make_outcome(Verdict.VIOLATED, pairs)
    text = plain(screen(make_document(outcome)))
    assert text.count("rng-not-restored") == 1
    assert len(text.splitlines()) <= 30


def test_many_findings_are_cut_and_counted(outcomes):
    names = ["weights-not-restored", "optimizer-not-restored", "diverged", "hang"]
    findings = [Finding(n, "something " * 60, attempt=2) for n in [*names, "exit-code"]]
    outcome = outcomes.make_outcome(
        Verdict.VIOLATED, [outcomes.violated_pair(1, *findings)]
    )
    text = plain(screen(make_document(outcome)))
    assert "and 1 more: exit-code" in text
    assert len(text.splitlines()) <= 40


def test_the_replay_line_is_whole_however_long(outcomes):
    settings = outcomes.make_settings(command=("python", "train.py", "a b" * 60))
    outcome = outcomes.make_outcome(
        Verdict.VIOLATED, [outcomes.violated_pair(1, outcomes.RNG)], settings=settings
    )
    line = plain(screen(make_document(outcome))).splitlines()[-1]
    assert line.startswith("  Replay: spotchaos replay sc1:")
    assert line.endswith("'" + "a b" * 60 + "'")


def test_the_replay_line_names_what_no_token_does(outcomes):
    settings = outcomes.make_settings(
        resume_cmd=("python", "train.py", "--resume", "last one.pt"),
        lose="machine",
        durable="out",
    )
    outcome = outcomes.make_outcome(
        Verdict.VIOLATED, [outcomes.violated_pair(1, outcomes.RNG)], settings=settings
    )
    line = plain(screen(make_document(outcome))).splitlines()[-1]
    words = shlex.split(line)[1:]
    assert words[:2] == ["spotchaos", "replay"]
    assert words[3:] == [
        *("--resume-cmd", "python train.py --resume 'last one.pt'"),
        *("--durable", "out", "--", *settings.command),
    ]


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        pytest.param(0, "no step done again", id="none"),
        pytest.param(1, "at most 1 step done again", id="one"),
        pytest.param(2, "at most 2 steps done again", id="more"),
    ],
)
def test_what_was_done_again_is_counted(outcomes, lost, said):
    document = make_document(outcomes.held())
    for trial in document["trials"]:
        for attempt in trial["attempts"]:
            attempt["lost_steps"] = lost
    assert said in " ".join(plain(screen(document)).split())


def test_what_bounds_the_verdict_is_said(outcomes):
    coverage = {"kill_points": 3, "of": 20, "not_reached": 2}
    trial, said = outcomes.held_pair(1)
    outcome = outcomes.make_outcome(
        Verdict.HELD,
        [(replace(trial, dropped=("step-end:30", "step-end:2")), said)],
        coverage=coverage,
        unprotected=("the network",),
        baseline=outcomes.make_baseline(not_compared=("rng.python",)),
    )
    text = plain(screen(make_document(outcome, notes=(outcomes.HIDDEN,))))
    assert "2 drawn kill points were not reached and dropped" in text
    assert "not protected: the network" in text
    assert "were hidden: last.pt" in text


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (["step-end:8"], "--budget ended before 1 of 5 plans: step-end:8"),
        (
            [f"step-end:{n}" for n in range(5)],
            "5 of 5 plans: step-end:0; step-end:1; step-end:2; step-end:3 ...",
        ),
    ],
)
def test_plans_that_a_budget_left_out_are_named(outcomes, left, said):
    outcome = outcomes.make_outcome(
        Verdict.UNKNOWN, coverage={"plans": 5, "not_run": left}
    )
    text = plain(screen(make_document(outcome)))
    assert "".join(said.split()) in "".join(text.split())


def test_the_last_lines_of_a_program_that_failed_stand_on_lines_of_their_own(outcomes):
    said = (
        "the program ended with status 1; its last lines:\n  File t.py\nKeyError: 'x'"
    )
    outcome = outcomes.make_outcome(Verdict.UNKNOWN, baseline=None, trouble=said)
    text = plain(screen(make_document(outcome)))
    assert "status 1; its last lines:\n    |   File t.py\n    | KeyError: 'x'\n" in text


def test_a_long_line_of_a_program_keeps_its_end(outcomes):
    said = f'it hangs at:\n  File "/{"folder/" * 20}train.py", line 4\n{"x" * 900}'
    outcome = outcomes.make_outcome(Verdict.UNKNOWN, baseline=None, trouble=said)
    lines = plain(screen(make_document(outcome))).splitlines()
    quoted = [line.strip("| ") for line in lines if line.startswith("    |")]
    assert '/train.py",line4' in "".join(quoted).replace(" ", "")
    assert sum("xxx" in line for line in quoted) <= 3
    assert max(map(len, lines)) <= 88


def test_ranks_that_disagree_have_a_column_each(outcomes):
    resume = outcomes.make_resume()
    other = {**resume.restored[0], "weights": 5}
    said = Judgement(
        Verdict.VIOLATED,
        (Finding("ranks-disagree", "rank 1 is at step 5", attempt=2),),
        (),
        (type(resume)(2, 10, {0: resume.restored[0], 1: other}, 10, 2),),
        None,
    )
    outcome = outcomes.make_outcome(Verdict.VIOLATED, [(outcomes.make_trial(1), said)])
    text = plain(screen(make_document(outcome)))
    assert "rank 0" in text
    assert "rank 1" in text
    row = next(line for line in text.splitlines() if line.startswith("    weights"))
    assert row.split() == ["weights", "step", "10", "step", "5"]


def test_what_is_amiss_stands_above_what_is_right(document):
    lines = plain(screen(document("violated"))).splitlines()
    start = lines.index(_heading(lines)) + 1
    rows = [line.split()[0] for line in lines[start : start + 6]]
    assert rows[:2] == ["rng.torch", "batch"]


def _heading(lines):
    return next(line for line in lines if line.strip().startswith("component"))


def test_what_is_of_another_step_than_the_joined_one_is_amiss():
    from spotchaos.report.screen import is_amiss

    assert not is_amiss(10, 10)
    assert not is_amiss(None, 10)
    assert is_amiss(11, 10)
    assert is_amiss("fresh", 10)
    assert is_amiss("foreign", 10)


@pytest.mark.parametrize(
    ("trials", "text"),
    [
        pytest.param([3], "trial 3", id="one"),
        pytest.param([1, 2], "trials 1, 2", id="two"),
        pytest.param(list(range(1, 21)), "trials 1, 2, 3, 4, 5, 6, ..., 20", id="many"),
    ],
)
def test_trials_are_listed_shortly(trials, text):
    assert trials_text(trials) == text


@pytest.mark.parametrize("name", ["held", "violated", "unknown"])
def test_progress_without_a_terminal_is_plain_lines(outcomes, snapshot, name):
    out = io.StringIO()
    report = TextReport(out)
    notes = (outcomes.HIDDEN,) if name == "violated" else ()
    for event in outcomes.events(getattr(outcomes, name)(), notes=notes):
        report(event)
    assert "\x1b" not in out.getvalue()
    snapshot(f"run_{name}.txt", out.getvalue())


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_the_same_words_have_colours(outcomes, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    report = TextReport(out, width=88)
    for event in outcomes.events(outcomes.violated()):
        report(event)
    report.close()
    assert "\x1b[" in out.getvalue()
    assert "VIOLATED" in out.getvalue()
    assert "rng-not-restored" in out.getvalue()


def test_an_interruption_says_what_was_done(outcomes):
    out = io.StringIO()
    report = TextReport(out)
    for event in outcomes.events(outcomes.violated())[:-4]:
        report(event)
    report.print_interruption()
    last = out.getvalue().splitlines()[-1]
    assert last == "interrupted in trial 4; 3 trials done: 1 held, 2 violated"


def test_nothing_hostile_reaches_the_terminal(nasty_document):
    text = plain(screen(nasty_document))
    printable = text.replace("\n", "").replace("\N{REPLACEMENT CHARACTER}", "")
    assert printable.isprintable()
    assert all(
        not line or line.startswith((" ", "VIOLATED")) for line in text.splitlines()
    )


def test_a_note_on_the_whole_campaign_says_what_it_says(outcomes):
    lost = Note("cold-path", "attempts were fresh from then on: the zygote ended")
    outcome = outcomes.make_outcome(
        Verdict.HELD, notes=((lost.name, ()),), late_notes=(lost,)
    )
    assert f"Note: {lost.message}" in plain(screen(make_document(outcome)))


TIMED = Timing(
    resumed_start_s=Measured(41.2, 40.0, 43.0, 3),
    lost_steps=Measured(17.0, 2.0, 30.0, 3),
)


def test_a_run_that_holds_says_what_a_reclaim_costs(outcomes):
    outcome = replace(outcomes.held(), timing=TIMED)
    made = make_document(outcome)
    assert "A reclaim costs you 41 s and 17 steps" in plain(screen(made))
    assert made["timing"]["lost_steps"]["n"] == 3


def test_what_was_not_measured_or_does_not_hold_costs_nothing(outcomes):
    without = replace(outcomes.held(), timing=replace(TIMED, lost_steps=None))
    violated = replace(outcomes.violated(), timing=TIMED)
    for outcome in (outcomes.held(), without, violated):
        assert "A reclaim costs" not in plain(screen(make_document(outcome)))
