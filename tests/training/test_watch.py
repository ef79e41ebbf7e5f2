"""A notice is seen, once, for what it is, and nothing that a service does stops the watch."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

import spotchaos.training.watch
from spotchaos.clock import SystemClock
from spotchaos.training.pollers import (
    AwsPoller,
    PollError,
)
from spotchaos.training.watch import (
    STOPPING,
    InterruptionWatch,
    Request,
    ignore_signals_in_workers,
)

ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
LIMIT_S = 20


def order(time):
    return 200, json.dumps({"action": "terminate", "time": time}), {}


class Scripted:
    """Says one thing after another, and tells when all is said."""

    period_s = 0.001
    hang_s = 0.0

    def __init__(self, *answers):
        self.answers = list(answers)
        self.done = threading.Event()

    def ask(self):
        if not self.answers:
            self.done.set()
            return None
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextmanager
def watched(*answers, monkeypatch=None, **more):
    poller = Scripted(*answers)
    with InterruptionWatch(signals=(), pollers=[poller], **more) as watch:
        assert poller.done.wait(LIMIT_S)
        yield watch


def sightings(service):
    service.answers[REBALANCE] = (200, "{}", {})
    advice = AwsPoller(service.url).ask()
    service.answers[ACTION] = order("2099-01-01T00:00:00Z")
    return advice, AwsPoller(service.url).ask()


def test_advice_asks_for_one_save_and_an_order_for_the_end(service):
    advice, command = sightings(service)
    with watched(advice, advice) as watch:
        assert watch.requested is Request.SAVE
        watch.mark_saved()
        assert watch.requested is Request.GO_ON
        watch.sight(advice)
        assert watch.requested is Request.GO_ON
        watch.sight(command)
        assert watch.requested is Request.STOP
        watch.mark_saved()
        assert watch.requested is Request.STOP


def test_errors_of_the_service_are_survived(service, monkeypatch):
    monkeypatch.setattr("spotchaos.training.watch.LONGEST_BACK_OFF_S", 0.001)
    _, command = sightings(service)
    errors = [PollError("503"), PollError("401"), ValueError("a user's function")]
    with watched(*errors, command) as watch:
        assert watch.requested is Request.STOP
        assert watch.seconds_left() > 0


def test_the_appearance_of_a_file_is_an_order(tmp_path):
    path = tmp_path / "reclaim"
    clock = SystemClock()
    with InterruptionWatch(signals=(), files=[path]) as watch:
        assert watch.requested is Request.GO_ON
        path.touch()
        end = clock.monotonic() + LIMIT_S
        while watch.requested is Request.GO_ON and clock.monotonic() < end:
            clock.sleep(0.01)
        assert watch.requested is Request.STOP


def test_a_function_of_the_user_s_can_order(tmp_path):
    asked = threading.Event()

    def ask():
        asked.set()
        return True

    clock = SystemClock()
    with InterruptionWatch(signals=(), ask=ask) as watch:
        assert asked.wait(LIMIT_S)
        end = clock.monotonic() + LIMIT_S
        while watch.requested is Request.GO_ON and clock.monotonic() < end:
            clock.sleep(0.001)
        assert watch.requested is Request.STOP


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_sets_the_flag_and_a_second_one_does_no_harm(number):
    before = signal.getsignal(number)
    with InterruptionWatch() as watch:
        assert watch.requested is Request.GO_ON
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        assert watch.requested is Request.STOP
        assert watch.received == number
        assert watch.seconds_left() is None
    assert signal.getsignal(number) == before


def test_a_handler_that_was_there_is_called_too():
    called = []
    before = signal.signal(signal.SIGUSR1, lambda *args: called.append(args[0]))
    try:
        with InterruptionWatch():
            os.kill(os.getpid(), signal.SIGUSR1)
        assert called == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_workers_started_inside_outlive_the_group_s_signals(forked):
    def work():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with ignore_signals_in_workers():
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    child = forked.one(work)
    assert forked.wait([child]) == [0]
    assert child.result == 7


def test_the_trainer_itself_still_hears_them():
    with InterruptionWatch() as watch:
        with ignore_signals_in_workers():
            os.kill(os.getpid(), signal.SIGTERM)
        assert watch.requested is Request.STOP


ABANDONS = """
import torch
from torch.utils.data import DataLoader
from spotchaos.training import ignore_signals_in_workers
loader = DataLoader(range(40), batch_size=2, num_workers=2, generator=torch.Generator())
with ignore_signals_in_workers():
    batches = iter(loader)
for number, batch in enumerate(batches):
    if number == 3:
        break  # the iterator stays, as in a loop at the top of a script
print("the end")
"""


def test_a_program_ends_though_its_deaf_workers_are_in_the_middle_of_an_epoch():
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", ABANDONS],
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,  # it never ended
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "the end\n")


@pytest.mark.parametrize(
    ("use", "new"),
    [
        pytest.param(lambda: InterruptionWatch().wish, "requested", id="wish"),
        pytest.param(lambda: InterruptionWatch().heeded(), "mark_saved", id="heeded"),
        pytest.param(
            lambda: spotchaos.training.deaf_workers,
            "ignore_signals_in_workers",
            id="deaf_workers",
        ),
        pytest.param(lambda: spotchaos.training.watch.Wish, "Request", id="Wish"),
    ],
)
def test_a_name_of_the_last_release_still_works_and_warns(use, new):
    with pytest.warns(DeprecationWarning, match=f"is now called {new};"):
        use()
