"""A notice in training, in evaluation, with loader workers: saved, agreed, in time."""

import os
import signal
import threading
from datetime import UTC, datetime, timedelta

import pytest
import torch

from spotchaos.providers.service import NoticeService
from spotchaos.providers.serving import on_loopback
from spotchaos.providers.stories import story
from spotchaos.training import trainer as trainers
from spotchaos.training.checkpoint import CheckpointStore
from spotchaos.training.keeper import Keeper
from spotchaos.training.peers import Peers
from spotchaos.training.plain import first_difference
from spotchaos.training.pollers import POLLERS, PollError, Sighting
from spotchaos.training.trainer import Schedule, Trainer
from spotchaos.training.watch import InterruptionWatch, Request

pytestmark = pytest.mark.ddp
LIMIT_S = 20


def build(forked, out, watch, *, on_step=(), held_out=None, **options):
    torch.manual_seed(0)
    return Trainer(
        model=forked.model(), data=forked.data(), loss_of=options.pop("loss", forked.loss),
        keeper=Keeper(CheckpointStore(out, run_id="toy"), in_background=False),
        peers=Peers(0, 1), schedule=Schedule(**{"batch": 2, "warm_up": 2, **options}),
        watch=watch, on_step=on_step, held_out=held_out,
    )  # fmt: skip


def order(seconds=None):
    deadline = None
    if seconds is not None:
        deadline = datetime.now(UTC) + timedelta(seconds=seconds)
    return Sighting("test", is_order=True, deadline=deadline)


ADVICE = Sighting("test", is_order=False)


def newest(out):
    checkpoint = CheckpointStore(out).newest()
    return None if checkpoint is None else checkpoint.step


def test_an_order_saves_at_once_and_stops(forked, tmp_path):
    watch = InterruptionWatch(signals=())

    def told(step, loss):
        if step == 3:
            watch.sight(order())

    assert build(forked, tmp_path, watch, on_step=[told], steps=99).run() is False
    assert newest(tmp_path) == 3


def test_advice_saves_at_once_and_goes_on(forked, tmp_path):
    watch = InterruptionWatch(signals=())
    seen = []

    def told(step, loss):
        if step == 3:
            watch.sight(ADVICE)
        if step >= 4:
            watch.sight(ADVICE)  # a provider repeats itself
            seen.append(newest(tmp_path))

    trainer = build(forked, tmp_path, watch, on_step=[told], steps=7, save_every=100)
    assert trainer.run() is True
    assert seen == [3, 3, 3, 3]
    assert newest(tmp_path) == 7


def test_a_run_that_ends_inside_the_window_finishes(forked, tmp_path):
    watch = InterruptionWatch(signals=())

    def told(step, loss):
        if step == 3:
            watch.sight(order(seconds=3600))

    assert build(forked, tmp_path, watch, on_step=[told], steps=6).run() is True
    assert newest(tmp_path) == 6


def test_a_run_that_does_not_fit_the_window_stops(forked, tmp_path):
    watch = InterruptionWatch(signals=())

    def told(step, loss):
        if step == 3:
            watch.sight(order(seconds=30))

    trainer = build(forked, tmp_path, watch, on_step=[told], steps=10**7)
    assert trainer.run() is False
    assert newest(tmp_path) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_second_signal_during_the_save_does_not_tear_it(forked, tmp_path, number):
    class Impatient(CheckpointStore):
        def save(self, state, **labels):
            os.kill(os.getpid(), number)
            return super().save(state, **labels)

    def told(step, loss):
        if step == 3:
            os.kill(os.getpid(), number)

    with InterruptionWatch() as watch:
        trainer = build(forked, tmp_path, watch, on_step=[told], steps=99)
        trainer._keeper.store = Impatient(tmp_path, run_id="toy")
        assert trainer.run() is False
    assert newest(tmp_path) == 3


def test_a_notice_in_an_evaluation_is_heeded_there(forked, tmp_path):
    watch = InterruptionWatch(signals=())
    judged = []

    def loss(model, batch):
        if not model.training:
            judged.append(1)
            if len(judged) == 5:
                watch.sight(order())
        return forked.loss(model, batch)

    trainer = build(
        forked, tmp_path, watch, loss=loss, held_out=forked.data(400),
        evaluate_every=4, steps=99, save_every=100,
    )  # fmt: skip
    assert trainer.run() is False
    assert len(judged) == 5
    assert newest(tmp_path) == 4


class Asking:
    """Orders at once, and waits to be told that the machine may go."""

    period_s = 0.001
    hang_s = 0.0

    def __init__(self, out, trouble=None):
        self.out = out
        self.trouble = trouble
        self.told_at = []

    def ask(self):
        return order()

    def acknowledged(self):
        self.told_at.append(newest(self.out))
        if self.trouble is not None:
            raise self.trouble


@pytest.mark.parametrize("trouble", [None, PollError("status 503")])
def test_the_provider_is_told_to_go_ahead_once_the_state_is_saved(
    forked, tmp_path, caplog, trouble
):
    poller = Asking(tmp_path, trouble)
    with InterruptionWatch(signals=(), pollers=[poller]) as watch:
        for _ in range(2000):
            if watch.must_stop:
                break
            threading.Event().wait(0.01)
        trainer = build(forked, tmp_path, watch, steps=99, save_every=100)
        assert trainer.run() is False
    assert poller.told_at == [trainer.step]
    assert ("was not told to go ahead" in caplog.text) == (trouble is not None)


def test_azure_goes_ahead_when_the_trainer_says_so(forked, tmp_path):
    service = NoticeService(story("azure"))
    with on_loopback(service) as url:
        service.announce()
        poller = POLLERS["azure"](url, acknowledge=True)
        watch = InterruptionWatch(signals=(), pollers=[poller])
        watch.sight(poller.ask())
        assert build(forked, tmp_path, watch, steps=10**7).run() is False
        assert "Started" in poller._request("GET").text


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_evaluating_changes_no_bit_of_the_training(forked, final, tmp_path, average):
    for name, every in [("with", 2), ("without", 0)]:
        trainers.seed_everything(3)
        trainer = build(
            forked, tmp_path / name, InterruptionWatch(signals=()), average=average,
            held_out=forked.data(20), evaluate_every=every, steps=6, save_every=3,
        )  # fmt: skip
        assert trainer.run()
    states = [final(tmp_path / name) for name in ("with", "without")]
    assert first_difference(*states, "state") is None


def test_the_best_checkpoint_stays(forked, tmp_path):
    trainer = build(
        forked, tmp_path, InterruptionWatch(signals=()), held_out=forked.data(20),
        evaluate_every=1, save_every=1, steps=9, rate=0.3,
    )  # fmt: skip
    assert trainer.run()
    store = CheckpointStore(tmp_path)
    scores = [store._verified(folder).manifest.score for folder in store.committed()]
    assert None not in scores
    assert 2 <= len(scores) <= 3


def test_loader_workers_outlive_a_signal_to_the_group(forked, tmp_path):
    # Without care the workers die first, the next fetch raises, and nothing is saved.
    def train():
        os.setsid()

        def told(step, loss):
            if step == 3:
                os.killpg(0, signal.SIGTERM)

        return forked.train(
            tmp_path, loader_workers=2, on_step=[told], steps=99, save_every=100
        )

    child = forked.one(train)
    assert forked.wait([child]) == [0]
    assert child.result is False
    assert newest(tmp_path) == 3


@pytest.mark.parametrize(
    ("name", "provider", "requested"),
    [
        ("aws", "aws", Request.STOP),
        ("aws-rebalance", "aws", Request.SAVE),
        ("gcp", "gcp", Request.STOP),
        ("azure", "azure", Request.STOP),
        ("alibaba", "alibaba", Request.STOP),
    ],
)
def test_the_harness_s_own_services_are_understood(name, provider, requested):
    service = NoticeService(story(name))
    with on_loopback(service) as url:
        poller = POLLERS[provider](url)
        poller.hang_s = 0.0
        assert poller.ask() is None
        service.announce()
        with InterruptionWatch(signals=(), pollers=[poller]) as watch:
            noticed = threading.Event()
            sight = watch.sight

            def note(sighting):
                sight(sighting)
                noticed.set()

            watch.sight = note
            assert noticed.wait(LIMIT_S)
            assert watch.requested is requested
