"""Which operations a fault of the disk strikes, and what it refuses to be called."""

from dataclasses import replace

import pytest

from spotchaos.config.settings import Settings
from spotchaos.errors import UsageError
from spotchaos.injectors.attempt_environment import AttemptEnvironment, Pace, window_s
from spotchaos.injectors.disks import DiskFault, injected_step, rule_of
from spotchaos.model import Attempt, AttemptTrace, Ended, RankTrace, SaveMark, StepMark
from spotchaos.persistence.oplog import FileOp, OpLog
from spotchaos.providers.stories import story
from spotchaos.trial.context import check_asked


def op(number, kind, path, at_s, to=None):
    return FileOp(kind=kind, number=number, path=path, to=to, at_s=at_s)


# Steps end at 1, 2, 3 and 4 s; saves go on from 1.1 to 1.4 s and from 3.1 to 3.4 s.
LOG = OpLog(
    start=(),
    ops=(
        op(1, "write", "0/train.log", 0.5),
        op(2, "write", "0/ckpt-1.tmp", 1.2),
        op(3, "rename", "0/ckpt-1.tmp", 1.3, to="0/ckpt-1"),
        op(4, "write", "0/train.log", 2.5),
        op(5, "write", "0/ckpt-3.tmp", 3.2),
        op(6, "write", "0/ckpt-3.tmp", 3.25),
        op(7, "rename", "0/ckpt-3.tmp", 3.3, to="0/ckpt-3"),
    ),
    header={"began_s": 100.0},
)


def recorded():
    saves = tuple(
        SaveMark(n, step, (f"ckpt-{step}",), None, begun_at_s=b, ended_at_s=b + 0.3)
        for n, step, b in ((1, 1, 101.1), (2, 3, 103.1))
    )
    steps = tuple(StepMark(n, {}, t_s=100.0 + n) for n in range(1, 5))
    rank = RankTrace(0, {}, None, steps, saves, (), {})
    trace = AttemptTrace({0: rank}, 1, 1, True)
    return Attempt(1, (), Ended.FINISHED, 0, trace, 1.0)


@pytest.mark.parametrize(
    ("text", "nth", "onwards", "step"),
    [
        pytest.param("enospc", 1, False, 1, id="first"),
        pytest.param("enospc:2", 2, False, 3, id="second"),
        pytest.param("eio:3+", 3, True, 3, id="from-then-on"),
        pytest.param("edquot:last", 2, True, 3, id="last-save"),
        pytest.param("rename-refused:2", 2, False, 3, id="rename"),
        pytest.param("enospc:9", 9, False, None, id="never"),
    ],
)
def test_only_operations_on_checkpoints_count(text, nth, onwards, step):
    rule = rule_of(DiskFault.parse(text), LOG, recorded(), patterns=["ckpt-#"])
    assert (rule.nth, rule.onwards) == (nth, onwards)
    assert "train.log" not in rule.path
    assert injected_step(rule, LOG, recorded()) == step


def test_the_last_save_before_a_kill_point_is_meant():
    fault = DiskFault.parse("enospc:last")
    rule = rule_of(fault, LOG, recorded(), patterns=[], before=3)
    assert (rule.nth, rule.onwards) == (1, True)


def test_where_no_save_was_seen_none_is_the_last():
    attempt = recorded()
    rank = replace(attempt.trace.ranks[0], saves=())
    unseen = replace(attempt, trace=replace(attempt.trace, ranks={0: rank}))
    rule = rule_of(DiskFault.parse("enospc:last"), LOG, unseen, patterns=[])
    assert injected_step(rule, LOG, unseen) is None
    assert rule_of(DiskFault.parse("enospc"), LOG, unseen, patterns=[]).nth == 1


def test_where_a_resume_reads_what_no_save_was_called_any_save_may_be_it():
    rule = rule_of(DiskFault.parse("enospc:last"), LOG, recorded(), patterns=["copy"])
    assert injected_step(rule, LOG, recorded()) == 3


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        pytest.param(
            {"fault": ("enospcs",)},
            "unknown fault 'enospcs'",
            "did you mean 'enospc'?",
            id="near-miss",
        ),
        pytest.param(
            {"fault": ("enospc:0",)},
            "fault 'enospc:0' has the count '0'",
            "enospc:3",
            id="count",
        ),
        pytest.param(
            {"fault": ("s3-50",)},
            "unknown fault 's3-50'",
            "did you mean 's3-50",
            id="store",
        ),
        pytest.param(
            {"notice": "awss"}, "unknown provider or notice 'awss'", "aws", id="notice"
        ),
    ],
)
def test_what_does_not_exist_is_refused_before_anything_runs(
    tmp_path, given, message, hint
):
    settings = Settings(command=("true",), folder=tmp_path, **given)
    with pytest.raises(UsageError, match=message) as caught:
        check_asked(settings)
    assert hint in (caught.value.hint or "")


def test_a_folder_moves_only_with_a_new_machine(tmp_path):
    with pytest.raises(UsageError, match="--move"):
        Settings(command=("true",), folder=tmp_path, move=True)


def test_a_window_ends_before_the_program_and_fits_its_saves_and_polls():
    slow = Pace(horizon=100, step_s=1.0, save_s=0.1)
    assert window_s(slow, done=40, poll_s=0.0, cloud_s=120.0) == 30.0
    assert window_s(slow, done=40, poll_s=0.0, cloud_s=5.0) == 5.0
    assert window_s(slow, done=98, poll_s=5.0, cloud_s=120.0) == 12.5
    assert window_s(slow, done=99, poll_s=0.0, cloud_s=120.0) == 1.0
    lingers = Pace(horizon=100, step_s=0.1, save_s=0.5, end_s=3.0)
    assert window_s(lingers, done=0, poll_s=1.0, cloud_s=120.0) == 6.0
    assert window_s(lingers, done=20, poll_s=1.0, cloud_s=120.0) == 6.0
    assert window_s(lingers, done=50, poll_s=1.0, cloud_s=120.0) == 4.0
    writes = Pace(horizon=10, step_s=0.1, save_s=2.0)
    assert window_s(writes, done=5, poll_s=0.0, cloud_s=120.0) == 8.0
    assert window_s(None, done=5, poll_s=0.0, cloud_s=120.0) == 120.0


def test_the_time_scale_is_chosen_when_the_notice_comes():
    pace = Pace(horizon=100, step_s=0.1, save_s=0.0)
    with AttemptEnvironment(story("aws"), isolated=False) as around:
        played = around.announce(pace, done=40)
        assert played.time_scale == pytest.approx(40.0)
        assert played.grace_s == 120
        assert played.reclaimed
    with AttemptEnvironment(story("aws-rebalance"), isolated=False) as around:
        assert not around.announce(pace, done=40).reclaimed
