"""SIGKILL to the harness at random moments: what it started ends, what it made is removed."""

import random
import select
import signal

import pytest

from tests.safety.conftest import wait_for_events

pytestmark = pytest.mark.timeout(600)  # whole runs, on a machine that may be busy

RUN = ("run", "--trials", "2", "--kill-at", "random", "--no-cache", "--json", "r.json")
PROGRAM = ("--", "python", "train.py", "{out}")
# Lines of the event stream that such a run writes, one for each phase and attempt.
EVENTS = 16
GONE_BOUND_S = 5.0


def kill_at(machine, moments, *, side_by_side=1):
    """Kill runs, each so many seconds after so many events.

    Returns:
        What was left, and how many were killed: one that had ended by itself is none.
    """
    left, killed = {}, 0
    for events, more_s in moments:
        streams = [machine.root / f"{number}.jsonl" for number in range(side_by_side)]
        runs = []
        for stream in streams:
            stream.unlink(missing_ok=True)
            runs.append(machine.start(*RUN, "--jsonl", str(stream), *PROGRAM))
        wait_for_events(runs[0], streams[0], events)
        select.select([], [], [], more_s)
        machine.see()
        for run in runs:
            run.send_signal(signal.SIGKILL)
            status = run.wait()
            assert status in (-9, 0)
            killed += status == -9
        if found := machine.wait_until_nothing_is_left(GONE_BOUND_S):
            left[events, more_s] = found
    return left, killed


def moments(draw):
    """Draw moments without end, as many before the first event as in any other phase."""
    while True:
        yield draw.randint(0, EVENTS), draw.uniform(0, 2.0)


def test_nothing_is_left_after_a_few_kills(machine):
    assert kill_at(machine, [(0, 0.3), (2, 0.4)]) == ({}, 2)
    assert kill_at(machine, [(1, 0.1)], side_by_side=2) == ({}, 2)


@pytest.mark.slow
@pytest.mark.timeout(14400)
@pytest.mark.parametrize(("side_by_side", "kills"), [(1, 120), (2, 80)])
def test_nothing_is_left_after_two_hundred_kills(machine, side_by_side, kills):
    drawn, done = moments(random.Random()), 0
    while done < kills:
        left, killed = kill_at(machine, [next(drawn)], side_by_side=side_by_side)
        assert left == {}
        done += killed
