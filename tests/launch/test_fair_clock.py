"""The clock of an attempt stands still while others keep it from running."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from spotchaos.clock import ManualClock, SystemClock
from spotchaos.launch.attempt.fair_clock import FairClock
from spotchaos.launch.isolation import delays
from spotchaos.launch.isolation.delays import Delays

SPIN = "while True: pass"
SLEEP = "import time; time.sleep(600)"


@contextmanager
def running(*programs):
    """Have programs run on one processor, and end them by their own pids."""
    cpu = min(os.sched_getaffinity(0))
    started = []
    try:
        for program in programs:
            one = subprocess.Popen([sys.executable, "-c", program])
            started.append(one)
            os.sched_setaffinity(one.pid, {cpu})
        yield started
    finally:
        for one in started:
            one.kill()
            one.wait()


def shares(process, *, seconds):
    """Return for how much of the time a process was delayed, as its fair clock has it."""
    clock = SystemClock()
    fair = FairClock(clock, lambda: process)
    begun_s, fair_s = clock.monotonic(), fair.monotonic()
    while clock.monotonic() < begun_s + seconds:
        clock.sleep(0.05)
    passed_s = fair.monotonic() - fair_s
    return passed_s / (clock.monotonic() - begun_s)


def test_who_computes_beside_three_others_has_a_quarter_of_the_time():
    with running(SPIN, SPIN, SPIN, SPIN) as (one, *_):
        SystemClock().sleep(1)
        assert shares(one, seconds=3) < 0.5


def test_who_waits_for_something_else_has_all_of_it():
    with running(SLEEP, SPIN, SPIN) as (one, *_):
        SystemClock().sleep(1)
        assert shares(one, seconds=2) > 0.9


@dataclass
class Kernel:
    """What the kernel says of the threads of processes, in seconds."""

    waited: dict

    def threads(self, pid):
        return list(self.waited.get(pid, {}))

    def waited_s(self, pid, tid):
        return self.waited.get(pid, {}).get(tid)


@pytest.fixture
def kernel(monkeypatch):
    found = Kernel({1: {1: 5.0}, 2: {2: 0.0, 3: 0.0}})
    monkeypatch.setattr(delays, "_threads", found.threads)
    monkeypatch.setattr(delays, "_waited_s", found.waited_s)
    return found


def test_the_thread_that_waited_longest_counts(kernel):
    clock = ManualClock()
    total = Delays(lambda: [1, 2], clock.monotonic)
    clock.advance(10.0)
    kernel.waited = {1: {1: 6.0}, 2: {2: 0.5, 3: 3.0}}
    assert total.total_s() == 3.0
    assert total.total_s() == 3.0


def test_a_delay_is_never_longer_than_the_time(kernel):
    clock = ManualClock()
    total = Delays(lambda: [1, 2], clock.monotonic)
    clock.advance(1.0)
    kernel.waited = {1: {1: 9.0}, 4: {4: 7.0}}  # 4 is new, or was not looked at before
    assert total.total_s() == 1.0


def test_who_has_ended_adds_nothing_and_takes_nothing_away(kernel):
    clock = ManualClock()
    total = Delays(lambda: [1, 2], clock.monotonic)
    clock.advance(4.0)
    kernel.waited = {1: {1: 7.0}}
    assert total.total_s() == 2.0
    clock.advance(4.0)
    kernel.waited = {}
    assert total.total_s() == 2.0


def test_where_the_kernel_does_not_count_it_is_the_other_clock(monkeypatch):
    monkeypatch.setattr(delays, "_waited_s", lambda pid, tid: None)
    clock = ManualClock()
    fair = FairClock(clock, lambda: None)
    clock.advance(3.0)
    assert fair.monotonic() == clock.monotonic() == 3.0
    assert fair.now() == clock.now()
