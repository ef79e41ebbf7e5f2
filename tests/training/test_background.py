"""What is written in the background is the state of its own step, or an error."""

import errno
import threading

import pytest
import torch

from spotchaos.errors import CheckpointError
from spotchaos.training import background
from spotchaos.training.background import BackgroundSaver, SnapshotPool
from spotchaos.training.checkpoint import CheckpointStore
from spotchaos.training.keeper import Keeper

LIMIT_S = 20


class Gate:
    """A writer that waits until it is let through."""

    def __init__(self):
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.written = []
        self.error = None

    def __call__(self, state, step):
        self.began.set()
        assert self.go_on.wait(LIMIT_S)
        if self.error is not None:
            raise self.error
        self.written.append((step, {name: t.clone() for name, t in state.items()}))


def test_training_on_does_not_change_what_is_written():
    gate = Gate()
    saver = BackgroundSaver(gate)
    weights = torch.zeros(1000)
    saver.save({"w": weights}, 1)
    assert gate.began.wait(LIMIT_S)
    weights += 1  # the next step, while the first is being written
    gate.go_on.set()
    saver.wait()
    assert gate.written[0][0] == 1
    assert torch.equal(gate.written[0][1]["w"], torch.zeros(1000))


def test_the_second_save_waits_for_the_first():
    gate = Gate()
    saver = BackgroundSaver(gate)
    weights = torch.zeros(10)
    saver.save({"w": weights}, 1)
    second = threading.Thread(target=saver.save, args=({"w": weights + 1}, 2))
    second.start()
    assert gate.began.wait(LIMIT_S)
    assert gate.written == []
    gate.go_on.set()
    second.join(LIMIT_S)
    saver.wait()
    assert [(step, state["w"][0].item()) for step, state in gate.written] == [
        (1, 0),
        (2, 1),
    ]


def test_an_error_in_the_thread_reaches_the_trainer_once():
    gate = Gate()
    gate.error = OSError(errno.ENOSPC, "No space left on device")
    gate.go_on.set()
    saver = BackgroundSaver(gate)
    saver.save({"w": torch.zeros(1)}, 1)
    saver._thread.join(LIMIT_S)
    assert "No space left" in saver.fault
    with pytest.raises(
        CheckpointError, match=r"in the background failed: .*No space left"
    ):
        saver.save({"w": torch.zeros(1)}, 2)
    gate.error = None
    saver.save({"w": torch.zeros(1)}, 3)
    saver.wait()
    assert [step for step, _ in gate.written] == [3]


def test_a_save_that_misses_its_deadline_is_said_to_have_missed_it():
    gate = Gate()
    saver = BackgroundSaver(gate)
    saver.save({"w": torch.zeros(1)}, 1)
    with pytest.raises(CheckpointError, match=r"not done after 0.01 s"):
        saver.wait(0.01)
    gate.go_on.set()
    saver.wait()
    assert len(gate.written) == 1


def test_the_pool_holds_one_copy_whatever_the_number_of_saves():
    pool = SnapshotPool()
    state = {"w": torch.zeros(500), "deep": [{"m": torch.ones(10)}, 3, "text", None]}
    first = pool.copy(state)
    address = first["w"].data_ptr()
    for _ in range(5):
        again = pool.copy(state)
    assert again["w"].data_ptr() == address != state["w"].data_ptr()
    assert pool.size_bytes == 510 * 4
    assert again["deep"][1:] == [3, "text", None]


def test_a_tensor_that_grew_is_copied_whole():
    pool = SnapshotPool()
    pool.copy({"w": torch.zeros(2)})
    assert torch.equal(pool.copy({"w": torch.ones(5)})["w"], torch.ones(5))


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(torch.tensor(2.5), id="no-dimension"),
        pytest.param(torch.empty(0, 3), id="empty"),
        pytest.param(torch.arange(6.0).view(2, 3).t(), id="transposed"),
        pytest.param(torch.arange(9.0)[2:5], id="a-slice"),
        pytest.param(torch.ones(3).expand(4, 3), id="expanded"),
        pytest.param(torch.arange(4).to(torch.bfloat16), id="bfloat16"),
        pytest.param(torch.tensor([1 + 2j, 3 - 1j]).conj(), id="conjugated"),
        pytest.param(torch.tensor([1 + 2j, 3 - 1j]).conj().imag, id="negated"),
        pytest.param(torch.nn.Parameter(torch.ones(3)), id="a-parameter"),
    ],
)
def test_a_copy_has_the_values_whatever_lies_in_memory(tensor):
    copied = SnapshotPool().copy({"w": tensor})["w"]
    assert torch.equal(copied, tensor.detach())
    assert copied.dtype == tensor.dtype
    assert copied.shape == tensor.shape


@pytest.mark.parametrize("cores", [1, 2])
def test_a_state_of_many_pieces_is_copied_whole(monkeypatch, cores):
    monkeypatch.setattr(background, "PIECE", 1000)  # bytes
    monkeypatch.setattr(
        background.os, "sched_getaffinity", lambda pid: set(range(cores))
    )
    state = {f"w{n}": torch.arange(n * 37, dtype=torch.int64) for n in range(60)}
    copied = SnapshotPool().copy(state)
    assert all(torch.equal(copied[name], tensor) for name, tensor in state.items())


def test_stalls_are_measured():
    saver = BackgroundSaver(lambda state, step: None)
    saver.save({"w": torch.zeros(1)}, 1)
    saver.save({"w": torch.zeros(1)}, 2)
    saver.wait()
    assert len(saver.stalls_s) == 2


def test_a_keeper_moves_latest_only_after_the_commit(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    keeper = Keeper(store)
    gate = Gate()
    save = store.save

    def slow(state, **labels):
        gate(state, labels["step"])
        return save(state, **labels)

    monkeypatch.setattr(store, "save", slow)
    keeper.save({"w": torch.zeros(3)}, step=1)
    assert gate.began.wait(LIMIT_S)
    assert CheckpointStore(tmp_path).newest() is None
    gate.go_on.set()
    keeper.wait()
    assert CheckpointStore(tmp_path).newest().step == 1


@pytest.mark.parametrize("background", [False, True])
def test_background_and_foreground_write_the_same_bits(
    forked, toy, final, tmp_path, background
):
    def train(out):
        keeper = Keeper(CheckpointStore(out, run_id="toy"), in_background=background)
        return forked.train(out, keeper=keeper, steps=8, save_every=2)

    child = forked.one(train, tmp_path / "a")
    assert forked.wait([child]) == [0]
    toy(tmp_path / "b", steps=8, save_every=2)
    from spotchaos.training.plain import first_difference

    assert first_difference(final(tmp_path / "a"), final(tmp_path / "b"), "s") is None
