"""What happens to one rank reaches the others within a bound; virtual workers agree."""

import errno
import os
import signal
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st

from spotchaos.clock import SystemClock
from spotchaos.errors import CheckpointError, UsageError
from spotchaos.training.checkpoint import CheckpointStore
from spotchaos.training.keeper import Keeper
from spotchaos.training.peers import join
from spotchaos.training.plain import first_difference
from spotchaos.training.reducer import share_out

pytestmark = pytest.mark.ddp
CLOCK = SystemClock()


def answer_of(work):
    try:
        return f"finished: {work()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("background", [False, True])
def test_a_full_disk_on_rank_0_ends_every_rank_with_its_reason(
    forked, tmp_path, background
):
    class Full(CheckpointStore):
        def save(self, state, **labels):
            if labels["step"] >= 4:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().save(state, **labels)

    def train():
        keeper = Keeper(Full(tmp_path, run_id="toy"), in_background=background)
        return answer_of(
            lambda: forked.train(None, keeper=keeper, steps=400, save_every=2)
        )

    ranks = forked.ranks(3, train)
    assert forked.wait(ranks) == [0, 0, 0]
    for rank in ranks:
        assert rank.result.startswith("CheckpointError")
        assert "No space left" in rank.result
    assert CheckpointStore(tmp_path).newest().step == 2


def test_an_exception_on_rank_1_ends_rank_0(forked, tmp_path):
    def train():
        def fail(step, loss):
            if step == 3 and os.environ["RANK"] == "1":
                raise ValueError("a bad batch")

        return forked.train(tmp_path, on_step=[fail], steps=400, save_every=2)

    ranks = forked.ranks(2, train)
    assert forked.wait(ranks) == [1, 1]


def test_a_killed_rank_ends_the_others(forked, tmp_path):
    def train():
        kill_at = 3 if os.environ["RANK"] == "1" else None
        return forked.train(tmp_path, kill_at=kill_at, steps=400, save_every=2)

    ranks = forked.ranks(3, train)
    assert forked.wait(ranks) == [1, -signal.SIGKILL, 1]


def test_a_stopped_rank_is_given_up_after_the_bound(forked):
    def exchange():
        peers = join(timeout_s=2.0, device=torch.device("cpu"))
        peers.agree(0)
        if peers.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return answer_of(lambda: peers.agree(0))

    ranks = forked.ranks(2, exchange)
    forked.wait(ranks[:1])
    ranks[1].kill()
    forked.wait(ranks)
    assert "finished" not in ranks[0].result


def test_long_work_of_rank_0_keeps_the_others_waiting_in_touch(forked, tmp_path):
    # A folder that comes slowly, an upload: longer than any bound on silence.
    def wait_for_work():
        peers = join(timeout_s=20, device=torch.device("cpu"))
        peers._beat_s = 0.01
        broadcast = peers.broadcast

        def counted(mine):
            told = broadcast(mine)
            (tmp_path / f"told-{peers.rank}").touch()
            return told

        def work():
            while not (tmp_path / "told-1").exists():  # rank 1 hears of it meanwhile
                CLOCK.sleep(0.002)
            raise OSError(errno.ENOSPC, "No space left on device")

        peers.broadcast = counted
        return answer_of(lambda: peers.led(work))

    ranks = forked.ranks(2, wait_for_work)
    assert forked.wait(ranks) == [0, 0]
    assert ranks[0].result == "OSError: [Errno 28] No space left on device"
    assert ranks[1].result == "CheckpointError: [Errno 28] No space left on device"


def test_a_rank_that_dies_while_rank_0_works_is_noticed_and_the_work_is_done(
    forked, tmp_path
):
    def wait_for_work():
        peers = join(timeout_s=20, device=torch.device("cpu"))
        peers._beat_s = 0.01

        def work():
            while (tmp_path / "alive").exists():
                CLOCK.sleep(0.002)
            (tmp_path / "done").touch()

        if peers.rank == 1:
            peers.broadcast(None)
            os.kill(os.getpid(), signal.SIGKILL)
        return answer_of(lambda: peers.led(work))

    (tmp_path / "alive").touch()
    ranks = forked.ranks(2, wait_for_work)
    assert forked.wait(ranks[1:]) == [-signal.SIGKILL]
    (tmp_path / "alive").unlink()
    assert forked.wait(ranks) == [0, -signal.SIGKILL]
    assert (tmp_path / "done").exists()
    assert "finished" not in ranks[0].result


def test_a_store_that_cannot_be_prepared_ends_every_rank_with_its_reason(
    forked, tmp_path
):
    (tmp_path / "file").touch()

    def train():
        return answer_of(lambda: forked.train(tmp_path / "file" / "x", steps=2))

    ranks = forked.ranks(2, train)
    assert forked.wait(ranks) == [0, 0]
    for rank in ranks:
        assert "no checkpoint can be kept in" in rank.result
        assert "Not a directory\nHint: name a folder" in rank.result


def test_a_signal_to_one_rank_stops_all_at_the_same_step(forked, tmp_path):
    def train():
        signal_at = 5 if os.environ["RANK"] == "1" else None
        return forked.train(tmp_path, signal_at=signal_at, steps=400, save_every=100)

    ranks = forked.ranks(3, train)
    assert forked.wait(ranks) == [0, 0, 0]
    assert [rank.result for rank in ranks] == [False] * 3
    assert CheckpointStore(tmp_path).newest().step == 5


def test_a_signal_at_the_last_step_is_a_finish(toy, tmp_path):
    codes, answers = toy(tmp_path, ranks=2, signal_at=4, steps=4)
    assert (codes, answers) == ([0, 0], [True, True])


def test_another_number_of_ranks_is_refused_on_every_rank(forked, toy, tmp_path):
    toy(tmp_path, ranks=2, steps=4, save_every=2)
    before = sorted(p.name for p in tmp_path.rglob("*"))

    def train():
        return answer_of(lambda: forked.train(tmp_path, steps=8))

    ranks = forked.ranks(3, train)
    assert forked.wait(ranks) == [0, 0, 0]
    assert all("written by 2 ranks, this run has 3" in rank.result for rank in ranks)
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


def test_another_number_of_ranks_goes_on_if_that_is_allowed(toy, tmp_path):
    toy(tmp_path, ranks=2, steps=4, save_every=2)
    codes, answers = toy(tmp_path, ranks=3, steps=8, allow_inexact=True)
    assert (codes, answers) == ([0] * 3, [True] * 3)
    assert CheckpointStore(tmp_path).newest().step == 8


def test_a_damaged_checkpoint_ends_every_rank_with_the_same_reason(
    forked, toy, tmp_path
):
    toy(tmp_path, ranks=2, steps=2, save_every=2)
    path = next(tmp_path.rglob("state.pt"))
    path.write_bytes(b"zeros")

    def train():
        return answer_of(lambda: forked.train(tmp_path, steps=8))

    ranks = forked.ranks(2, train)
    assert forked.wait(ranks) == [0, 0]
    assert all("none of the 1 checkpoints" in rank.result for rank in ranks)


# --- virtual workers


def test_workers_are_shared_out_evenly_and_in_order():
    assert share_out(4, 3) == [[0], [1], [2, 3]]
    assert share_out(6, 2) == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(UsageError, match="2 virtual workers are too few for 3 ranks"):
        share_out(2, 3)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_any_number_of_ranks_gives_the_same_bits(toy, final, tmp_path, precision):
    options = {
        "virtual_workers": 4, "steps": 7, "save_every": 3, "accumulate": 2,
        "precision": precision, "average": 0.9, "batch": 2,
    }  # fmt: skip
    states = []
    for ranks in (1, 2, 3, 4):
        codes, _ = toy(tmp_path / str(ranks), ranks=ranks, **options)
        assert codes == [0] * ranks
        states.append(final(tmp_path / str(ranks)))
    for state in states[1:]:
        assert first_difference(states[0], state, "state") is None


@given(plan=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), max_size=3))
@settings(max_examples=6)
def test_ranks_come_and_go_and_the_bits_stay(toy, final, plan):
    options = {"virtual_workers": 4, "steps": 9, "save_every": 2, "accumulate": 1}
    with tempfile.TemporaryDirectory() as folder:
        quiet, elastic = Path(folder, "quiet"), Path(folder, "elastic")
        toy(quiet, ranks=1, **options)
        for ranks, kill_at in plan:
            toy(elastic, ranks=ranks, kill_at=kill_at, **options)
        codes, _ = toy(elastic, ranks=2, **options)
        assert codes == [0, 0]
        assert first_difference(final(quiet), final(elastic), "state") is None


def test_a_run_with_other_virtual_workers_is_refused(forked, toy, tmp_path):
    toy(tmp_path, virtual_workers=4, steps=2)
    child = forked.one(
        lambda: answer_of(lambda: forked.train(tmp_path, virtual_workers=2, steps=4))
    )
    forked.wait([child])
    assert "written by 4 ranks, this run has 2" in child.result


def test_peers_alone_need_no_group():
    peers = join({})
    assert (peers.rank, peers.world_size, peers.leads) == (0, 1, True)
    assert peers.agree(2) == 2
    assert peers.gather("x") == ["x"]
    assert peers.broadcast("x") == "x"
    assert torch.equal(peers.broadcast_bytes(b"ab"), torch.tensor([97, 98]).byte())
    peers.leave()


def test_a_hook_that_fails_alone_is_raised(forked, tmp_path):
    def fail(step, loss):
        raise CheckpointError("no")

    child = forked.one(
        lambda: answer_of(lambda: forked.train(tmp_path, on_step=[fail], steps=2))
    )
    forked.wait([child])
    assert child.result == "CheckpointError: no"
