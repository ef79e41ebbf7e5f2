"""What lives on, stays behind or waits when an attempt is over; and what is only a habit."""

from dataclasses import replace

import pytest
from synthetic import Program

from spotchaos.findings import breaks
from spotchaos.model import Ended, Left, Stored
from spotchaos.oracles import judge
from spotchaos.oracles.rank_agreement import BEHIND_S

PROGRAM = Program(horizon=24, epoch_steps=8, save_every=4)
BASELINE = PROGRAM.baseline()
STACKS = """rank 0, pid 7:
Thread 0x1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/home/me/train.py", line 41 in save

rank 2, pid 9:
Thread 0x1 (most recent call first):
  File "/home/me/train.py", line 50 in barrier"""


def said(first=None, last=None, *, usual=None):
    """Judge a killed attempt and the one that goes on, each with what it left."""
    trial = PROGRAM.trial([13])
    one, two = trial.attempts
    attempts = (replace(one, **(first or {})), replace(two, **(last or {})))
    runs = tuple(replace(run, **(usual or {})) for run in BASELINE.runs)
    judged = judge(replace(trial, attempts=attempts), replace(BASELINE, runs=runs))
    return judged.findings


NOTHING = {"left": Left()}
LIVING = {"survivors": ("pid 31: python monitor.py",), "ended": Ended.EXITED}


def test_who_lives_on_is_an_orphan():
    (finding,) = said({**LIVING, "exit_code": 143, "signal": "TERM"})
    assert finding.name == "orphans"
    assert "python monitor.py" in finding.message


def test_who_always_lives_on_convicts_nobody():
    usual = {"survivors": ("pid 77: python monitor.py",)}
    given = {**LIVING, "exit_code": 143, "signal": "TERM"}
    assert said(given, usual=usual) == ()


def behind(seconds, **changes):
    """Return an attempt whose leader ended so long before the last step but one."""
    last = PROGRAM.trial([13]).attempts[0].trace.ranks[0].steps[-2]
    given = {
        "signal": "TERM",
        "target": "leader",
        "ended": Ended.EXITED,
        "exit_code": -15,
    }
    return {**given, "over_at_s": last.t_s - seconds, **changes}


@pytest.mark.parametrize("target", ["leader", "launcher"])
def test_ranks_that_train_on_without_who_was_told_to_stop_are_orphans(target):
    (finding,) = said(behind(BEHIND_S + 1e-6, target=target))
    assert finding.name == "orphans"
    assert finding.message == (
        f"attempt 1 was over, and its ranks, which SIGTERM to their {target} did not reach,"
        " trained on for 1 step"
    )
    assert "`exec`" in finding.hint
    # So they are if the machine goes before anybody has looked for survivors.
    (finding,) = said(behind(BEHIND_S + 1e-6, target=target, ended=Ended.RECLAIMED))
    assert finding.name == "orphans"


@pytest.mark.parametrize(
    "given",
    [
        behind(BEHIND_S - 1e-6),
        behind(BEHIND_S + 1, signal="KILL"),
        behind(BEHIND_S + 1, signal="STOP"),
        behind(BEHIND_S + 1, target="all"),
        behind(BEHIND_S + 1, target="group"),
        behind(BEHIND_S + 1, target="ours"),
        behind(BEHIND_S + 1, over_at_s=None),
    ],
    ids=[
        "soon",
        "killed",
        "thawed",
        "all told",
        "group told",
        "ours told",
        "never over",
    ],
)
def test_steps_behind_an_end_that_nobody_could_pass_on_make_no_orphans(given):
    assert [f.name for f in said(given) if f.name == "orphans"] == []


def test_a_group_that_holds_no_rank_leaves_orphans_too():
    (finding,) = said(behind(BEHIND_S + 1e-6, target="group", notified_rank=False))
    assert finding.name == "orphans"
    # Nor does anybody pass on what goes to data loaders.
    assert said(behind(BEHIND_S + 1, target="workers", notified_rank=False)) == ()


def test_ranks_that_wait_for_ever_are_named_with_their_line():
    (finding,) = said({"stuck": True, "stacks": STACKS, "signalled_step": 13})
    assert finding.name == "peer-hang"
    assert "rank 0 at /home/me/train.py:41 and rank 2 at /home/me/train.py:50" in (
        finding.message
    )
    assert finding.where == {"file": "/home/me/train.py", "line": 41}


HALF = (("checkpoints/last-x8fj2k_1.tmp", 900),)


def test_half_a_checkpoint_that_nobody_sweeps_is_left_over():
    left = {"left": Left(files=HALF)}
    (finding,) = said(left, left, usual=NOTHING)
    assert finding.name == "leftovers"
    assert "last-x8fj2k_1.tmp" in finding.message
    # The run came back and finished: all but the strongest promise still hold.
    assert breaks(finding.name) == "bitwise"


@pytest.mark.parametrize(
    ("first", "last", "usual"),
    [
        pytest.param(HALF, (), (), id="swept"),
        pytest.param((), HALF, (), id="of-the-last-attempt-alone"),
        pytest.param(HALF, HALF, (("checkpoints/last-qqqq11_2.tmp", 9),), id="a-habit"),
        pytest.param((("a.lock", 0),), (("a.lock", 0),), (), id="empty"),
    ],
)
def test_these_files_convict_nobody(first, last, usual):
    found = said(
        {"left": Left(files=first)},
        {"left": Left(files=last)},
        usual={"left": Left(files=usual)},
    )
    assert found == ()


def test_shared_memory_of_who_ended_by_itself_is_left_over():
    segment = Left(memory=(("psm_1f2e3d4c", 4096),))
    by_itself = {"left": segment, "ended": Ended.EXITED, "exit_code": 143}
    (finding,) = said({**by_itself, "signal": "TERM"}, {"left": segment}, usual=NOTHING)
    assert finding.name == "leftovers"
    assert "psm_1f2e3d4c" in finding.message
    assert said({"left": segment}, {"left": segment}, usual=NOTHING) == ()
    assert said({**by_itself, "signal": "TERM"}, usual={"left": segment}) == ()


def test_small_things_in_tmpdir_convict_nobody():
    small, large = (("pymp-x1", 100),), (("spool", 2 << 20),)
    assert said({}, {"left": Left(temporary=small)}, usual=NOTHING) == ()
    (finding,) = said({}, {"left": Left(temporary=large)}, usual=NOTHING)
    assert finding.name == "leftovers"


def test_an_upload_that_nobody_aborts_is_left_over():
    stored = {"stored": Stored({}, {}, (), abandoned=("bucket/step-12.pt",))}
    empty = {"stored": Stored({}, {}, ())}
    (finding,) = said({}, stored, usual=empty)
    assert finding.name == "leftovers"
    assert "bucket/step-12.pt" in finding.message
    assert said(stored, empty, usual=empty) == ()


def test_a_fixed_port_that_a_survivor_keeps_is_left_over():
    def listening(port):
        return {"left": Left(ports=(("python monitor.py", port),))}

    given = {"ended": Ended.EXITED, "exit_code": 143, "signal": "TERM"}
    (finding,) = said({**given, **listening(6006)}, usual=NOTHING)
    assert finding.name == "leftovers"
    assert "port 6006 is still taken, by 'python monitor.py'" in finding.message
    chosen_by_the_system = {**given, **listening(40123)}
    assert said(chosen_by_the_system, usual=NOTHING) == ()
    assert said({**given, **listening(6006)}, usual=listening(6006)) == ()
    assert said(listening(6006), usual=NOTHING) == ()  # a reclaim takes it as well
