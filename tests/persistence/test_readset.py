"""States that answer a resume's questions alike need not be run twice."""

import random

import pytest

from spotchaos.persistence.crash_states import build
from spotchaos.persistence.oplog import FileOp
from spotchaos.persistence.readset import (
    Asked,
    Memo,
    Question,
    answers,
    asked_by,
    questions,
)
from spotchaos.persistence.tokens import StateToken

LOOK, LIST, READ, KIND = Asked.LOOK, Asked.LIST, Asked.READ, Asked.KIND


def at(history, number):
    return build(history, StateToken(letter="K", number=number))


@pytest.fixture
def saves(scribe):
    """Op 5 begins a second save beside a whole first one; op 7 puts it in place."""
    scribe.creat("tmp")
    scribe.write("tmp", b"first")
    scribe.rename("tmp", "last")
    scribe.symlink("last", "pointer")
    scribe.creat("tmp")
    scribe.write("tmp", b"second")
    scribe.rename("tmp", "last")
    return scribe.history()


def test_a_leftover_that_nobody_reads_changes_no_answer(saves):
    asked = (Question(LOOK, "last"), Question(READ, "last"))
    assert len({answers(saves, at(saves, n), asked) for n in (4, 5, 6, 7)}) == 1
    assert answers(saves, at(saves, 8), asked) != answers(saves, at(saves, 7), asked)


def test_a_listing_sees_the_leftover(saves):
    asked = (Question(LIST, ""),)
    assert answers(saves, at(saves, 5), asked) != answers(saves, at(saves, 6), asked)
    assert answers(saves, at(saves, 6), asked) == answers(saves, at(saves, 7), asked)


def test_reading_through_a_pointer_reads_what_it_points_to(saves):
    through = (Question(READ, "pointer"),)
    direct = (Question(READ, "last"),)
    assert answers(saves, at(saves, 7), through) == answers(saves, at(saves, 7), direct)
    assert answers(saves, at(saves, 3), through) == (None,)


def test_a_file_that_grows_answers_a_look_differently(saves):
    asked = (Question(LOOK, "tmp"),)
    assert answers(saves, at(saves, 6), asked) != answers(saves, at(saves, 7), asked)


def test_questions_after_the_first_change_do_not_count():
    ops = [
        FileOp(kind="question", text="look", path="last"),
        FileOp(kind="question", text="look", path="last"),
        FileOp(kind="question", text="read", path="last"),
        FileOp(kind="creat", number=1, path="tmp", node=9),
        FileOp(kind="question", text="list", path=""),
    ]
    assert questions(ops) == (Question(LOOK, "last"), Question(READ, "last"))


def test_a_known_answer_is_skipped_and_an_unknown_one_is_run(saves):
    memo = Memo(spot_check=0.0, rng=random.Random(1))
    asked = (Question(READ, "last"),)
    assert memo.known(saves, at(saves, 5)) is None
    memo.add(saves, at(saves, 5), asked, "resumed from 1")
    assert memo.known(saves, at(saves, 7)) == "resumed from 1"
    assert memo.known(saves, at(saves, 8)) is None
    assert (memo.skipped, memo.classes, memo.conflicts) == (1, 1, [])


def test_the_spot_check_runs_some_and_tells_of_conflicts(saves):
    memo = Memo(spot_check=1.0, rng=random.Random(1))
    asked = (Question(READ, "last"),)
    memo.add(saves, at(saves, 5), asked, "one")
    assert memo.known(saves, at(saves, 6)) is None
    memo.add(saves, at(saves, 6), asked, "other")
    assert (memo.checked, memo.conflicts) == (1, [("one", "other")])


def op(kind, number=1, **fields):
    return FileOp(kind=kind, number=number, **fields)


def asks(asked, path, to=None):
    return FileOp(kind="question", text=str(asked), path=path, to=to)


def test_a_file_that_a_run_creates_is_asked_only_what_it_is():
    found = asked_by([op("creat", path="tmp"), op("rename", path="tmp", to="last")])
    assert found == (Question(KIND, "tmp"), Question(KIND, "last"))


def test_what_a_run_has_made_itself_is_asked_of_nobody():
    ops = [op("creat", path="tmp"), op("rename", path="tmp", to="last")]
    found = asked_by([*ops, asks(READ, "last"), asks(LOOK, "tmp")])
    assert Question(READ, "last") not in found
    assert Question(LOOK, "tmp") not in found


def test_what_a_run_moved_away_is_asked_by_the_name_that_it_had():
    ops = [op("rename", path="saved", to="saved.old"), asks(READ, "saved.old/model.pt")]
    assert Question(READ, "saved/model.pt") in asked_by(ops)
    assert Question(READ, "saved.old/model.pt") not in asked_by(ops)


def test_an_op_that_failed_has_made_nothing():
    ops = [op("mkdir", path="out", error=17), asks(READ, "out/last")]
    assert Question(READ, "out/last") in asked_by(ops)


def test_a_file_that_was_only_appended_to_is_still_the_one_found():
    ops = [op("write", path="state", offset=8, length=8), asks(READ, "state")]
    assert Question(READ, "state") in asked_by(ops)


def test_a_link_on_the_way_is_asked_where_it_points():
    found = asked_by([asks(READ, "step_3/model", to="latest/model")])
    assert Question(KIND, "latest") in found
    assert Question(READ, "step_3/model") in found


def test_a_kind_tells_a_link_by_its_target_and_a_file_by_nothing(saves):
    kind = (Question(KIND, "tmp"), Question(KIND, "pointer"))
    assert answers(saves, at(saves, 6), kind) == answers(saves, at(saves, 7), kind)
    assert answers(saves, at(saves, 4), kind) != answers(saves, at(saves, 5), kind)
