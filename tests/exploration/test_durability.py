"""Which durability finding a failed resume is, by the op at which its state was cut."""

from dataclasses import replace

import pytest

from spotchaos.model import (
    Attempt,
    AttemptTrace,
    Ended,
    Finding,
    Judgement,
    ProgramException,
    RankTrace,
    Resume,
    StepMark,
    Verdict,
)
from spotchaos.oracles.durability import HINTS, Cut, durability


def judged(*names):
    findings = tuple(Finding(name, f"said of {name}") for name in names)
    verdict = Verdict.VIOLATED if names else Verdict.HELD
    return Judgement(verdict, findings, (), (), None)


def resumed(steps=0):
    marks = tuple(StepMark(step=n, components={}) for n in range(1, steps + 1))
    rank = RankTrace(
        rank=0, states={}, finish=None, steps=marks, saves=(), loads=(), counts={}
    )
    trace = AttemptTrace({0: rank}, world_size=1, processes=1, torch_seen=True)
    return Attempt(2, ("python",), Ended.FAILED, 1, trace, wall_s=1.0)


WRITE = Cut("write", "last.pt", where="train.py:7")


@pytest.mark.parametrize(
    ("names", "cut", "steps", "expected"),
    [
        (["resume-failed"], WRITE, 0, "torn-checkpoint"),
        (["resume-failed"], WRITE, 3, "leftover-blocks-save"),
        (["resume-failed"], Cut("unlink", "last.pt"), 0, "deleted-before-saved"),
        (["silent-restart"], Cut("unlink", "latest"), 0, "deleted-before-saved"),
        (["silent-restart"], Cut("rmdir", "saved"), 0, "deleted-before-saved"),
        (["resume-failed"], Cut("symlink", "latest", is_pointer=True), 0, "pointer-ahead"),
        (["resume-failed"], Cut("rename", "a", is_power_loss=True), 0, "unsynced-checkpoint"),
        (["stale-resume"], Cut("rename", "a", is_power_loss=True), 0, "unsynced-checkpoint"),
        (["weights-not-restored", "diverged"], WRITE, 0, "silent-damage"),
        (["diverged"], Cut("rename", "main.pt", is_one_of_several=True), 0, "mixed-steps"),
        (["mixed-steps", "diverged"], WRITE, 0, "mixed-steps"),
        (["silent-restart"], WRITE, 0, "silent-restart"),
        (["no-checkpoint"], WRITE, 0, "no-checkpoint"),
        (["never-resumes"], WRITE, 0, "never-resumes"),
    ],
)  # fmt: skip
def test_the_op_at_the_cut_says_why(names, cut, steps, expected):
    assert durability(judged(*names), resumed(steps), cut).name == expected


def test_the_first_of_two_files_is_a_part_and_not_damaged():
    cut = Cut("rename", "tmp", "main.pt", is_one_of_several=True)
    attempt = replace(resumed(3), ended=Ended.FINISHED, exit_code=0)
    found = durability(judged("diverged"), attempt, cut)
    assert found.message == (
        "killed at rename 'tmp' to 'main.pt', the resume goes on from a part of what is"
        " saved, without a word"
    )
    assert found.hint == HINTS["mixed-steps"]
    found = durability(judged("mixed-steps", "diverged"), attempt, cut)
    assert "from parts of different saves" in found.message


def test_a_start_that_fails_once_all_is_trained_is_not_the_crashs_doing():
    cut = Cut("rename", "tmp", "latest", is_pointer=True, is_end=True)
    found = durability(judged("resume-failed"), resumed(), cut)
    assert found.name == "resume-failed"
    assert found.message.startswith("killed after the last save, with nothing left")
    # It trained, and failed at a save: something was in the way.
    assert durability(judged("resume-failed"), resumed(3), cut).name == (
        "leftover-blocks-save"
    )


def test_a_resume_that_held_has_no_finding():
    assert durability(judged(), resumed(), WRITE) is None


@pytest.mark.parametrize(
    ("batch", "expected"),
    [(3, "mixed-steps"), (6, "step-count-wrong"), ("fresh", "step-count-wrong")],
)
def test_a_position_of_another_save_than_the_weights_is_a_mixture(batch, expected):
    restored = {0: {"weights": 6, "optimizer": 6, "batch": batch}}
    resume = Resume(2, 6, restored, newest_resume_point=3, lost_steps=0)
    said = replace(judged("step-count-wrong"), resumes=(resume,))
    found = durability(said, resumed(), WRITE)
    assert found.name == expected
    assert found.where == {"file": "train.py", "line": 7}
    assert durability(said, resumed(), WRITE, always={"step-count-wrong"}).name == (
        "step-count-wrong"
    )


@pytest.mark.parametrize(
    ("joined", "steps", "expected"),
    [(12, 3, "mixed-steps"), (12, 0, "step-count-wrong"), (0, 9, "step-count-wrong")],
)
def test_a_count_that_only_a_crash_makes_wrong_is_of_another_save(
    joined, steps, expected
):
    resume = Resume(2, joined, {}, newest_resume_point=9, lost_steps=0)
    said = replace(judged("step-count-wrong"), resumes=(resume,))
    assert durability(said, resumed(steps), WRITE).name == expected


def test_the_finding_points_at_the_line_that_made_the_op():
    found = durability(judged("resume-failed"), resumed(), WRITE)
    assert found.where == {"file": "train.py", "line": 7}
    assert found.hint == HINTS["torn-checkpoint"]
    assert "killed at write 'last.pt'" in found.message
    finished = replace(resumed(), ended=Ended.FINISHED)
    mixed = durability(judged("mixed-steps"), finished, WRITE)
    assert "goes on from parts of different saves" in mixed.message


def test_a_new_folder_whose_name_was_lost_wants_the_one_above_it_synced():
    cut = Cut("mkdir", "ckpt", is_power_loss=True)
    found = durability(judged("silent-restart"), resumed(), cut)
    assert found.name == "unsynced-checkpoint"
    assert "fsync the folder above" in found.hint


def test_what_a_clean_stop_shows_as_well_is_not_blamed_on_the_crash():
    said = judged("buffers-not-restored", "diverged")
    always = {"buffers-not-restored", "diverged"}
    found = durability(said, resumed(), WRITE, always=always)
    assert found.name == "buffers-not-restored"
    said = judged("resume-failed", "buffers-not-restored")
    found = durability(said, resumed(), WRITE, always=always)
    assert found.name == "torn-checkpoint"


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (
            Ended.FAILED,
            "the resume fails with status 3, its last line was 'bad checksum'",
        ),
        (Ended.HUNG, "the resume never ends"),
    ],
)
def test_a_resume_that_ends_without_an_exception_is_told_by_its_last_words(
    ended, expected
):
    attempt = replace(
        resumed(), ended=ended, exit_code=3, output_tail="loading\nbad checksum\n"
    )
    assert expected in durability(judged("resume-failed"), attempt, WRITE).message


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (("Connection closed by peer [127.0.0.1]:3304", "no rank1.pt"), "no rank1.pt"),
        (("no rank0.pt", "no rank1.pt"), "no rank0.pt"),
        (("Connection reset by peer", "Connection closed by peer"), "reset by peer"),
        ((None, "Connection reset by peer"), "reset by peer"),
    ],
)
def test_of_several_ranks_the_one_that_failed_by_itself_is_quoted(raised, expected):
    attempt = resumed()
    ranks = {
        number: replace(
            attempt.trace.ranks[0],
            rank=number,
            exception=said and ProgramException("RuntimeError", said, "train.py", 9),
        )
        for number, said in enumerate(raised)
    }
    attempt = replace(attempt, trace=replace(attempt.trace, ranks=ranks))
    message = durability(judged("resume-failed"), attempt, WRITE).message
    assert [said for said in raised if said and said in message] == [
        said for said in raised if said and expected in said
    ]


@pytest.mark.parametrize(
    ("component", "weights", "expected"),
    [
        pytest.param("batch", 0, "diverged", id="other data for a whole state"),
        pytest.param("loss", 0, "silent-damage", id="equal data"),
        pytest.param("batch", "foreign", "silent-damage", id="damaged weights"),
    ],
)
def test_prepared_data_that_a_kill_spoilt_are_no_damaged_checkpoint(
    component, weights, expected
):
    said = judged("diverged")
    finding = replace(said.findings[0], component=component)
    resume = Resume(
        2,
        0,
        {0: {"weights": weights, "rng.torch": 0}},
        newest_resume_point=None,
        lost_steps=0,
    )
    said = replace(said, findings=(finding,), resumes=(resume,))
    found = durability(said, resumed(3), Cut("write", "cache.part", where="train.py:7"))
    assert found.name == expected
