"""Halting at a kill point: exact, re-entrant, and swallowing nothing (rules.md 5)."""

import itertools
import json
import select
import signal
import socket
import subprocess
import sys

import pytest

from spotchaos.trace.format import HALTED_SLOT, STEPS_SLOT, Counters

SCRIPT = """
import os, signal, torch
class Preempted(Exception): pass
def handler(number, frame):
    torch.save(net.state_dict(), "emergency.pt")
    os.replace("emergency.pt", "emergency.ready")
    {then}
signal.signal(signal.SIGTERM, handler)
torch.manual_seed(0)
net = torch.nn.Linear(3, 2)
opt = torch.optim.SGD(net.parameters(), 0.01)
try:
    for step in range(4):
        net(torch.ones(4, 3)).sum().backward()
        opt.step(); opt.zero_grad()
except Preempted as error:
    print("preempted after", step + 1, error)
print("end")
"""


class Harness:
    """The other end of the attempt's socket."""

    def __init__(self, place, script, **orders):
        path = str(place.path / "s")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        self.listener.settimeout(100)
        env, self.trace = place.environment(socket=path, **orders)
        self.process = subprocess.Popen(
            [sys.executable, str(place.write(script))],
            env=env,
            cwd=place.work,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(100)
        self.lines = self.connection.makefile("rb")

    def hear(self):
        return json.loads(self.lines.readline())

    def say(self, **message):
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def counter(self, slot):
        (path,) = self.trace.glob(f"{self.process.pid}-*.counters")
        page = Counters(str(path))
        try:
            return page.get(slot)
        finally:
            page.close()

    def inject(self):
        (path,) = self.trace.glob(f"{self.process.pid}-*.counters")
        Counters.inject(str(path))

    def end(self):
        out, _ = self.process.communicate(timeout=100)
        self.lines.close()
        self.connection.close()
        self.listener.close()
        return out


def test_the_program_holds_at_its_kill_point_and_goes_on(place):
    harness = Harness(place, SCRIPT.format(then="pass"), kill="step-end:2")
    assert harness.hear()["hello"]["pid"] == harness.process.pid
    said = harness.hear()
    assert (said["halt"], said["pid"]) == ("step-end:2", harness.process.pid)
    assert (said["rank"], said["step"]) == (0, 2)
    assert harness.counter(HALTED_SLOT) == 1
    assert harness.counter(STEPS_SLOT) == 2
    assert harness.process.poll() is None
    harness.say(go=1)
    assert harness.end() == "end\n"
    assert harness.counter(HALTED_SLOT) == 0
    assert harness.counter(STEPS_SLOT) == 4


def test_a_signal_during_the_halt_runs_the_handler_inside_it(place):
    script = SCRIPT.format(then='raise Preempted("now")')
    harness = Harness(place, script, kill="step-end:2")
    harness.hear()
    harness.hear()
    harness.process.send_signal(signal.SIGTERM)
    # The exception ends the wait: no go-on is needed, and none is lost.
    assert harness.end() == "preempted after 2 now\nend\n"
    assert (place.work / "emergency.ready").exists()


def test_a_handler_may_halt_within_the_halt(place):
    harness = Harness(place, SCRIPT.format(then="pass"), kill="step-end:2")
    harness.hear()
    outer = harness.hear()
    # The first answer is for the outer halt, though the handler waits within it.
    harness.say(go=1, id=0, kill="save-begin:1")
    harness.say(go=1)
    assert outer["halt"] == "step-end:2"
    assert harness.end() == "end\n"


def test_sites_that_a_handler_reaches_may_be_kill_points(place):
    harness = Harness(place, SCRIPT.format(then="pass"), kill="step-end:2")
    harness.hear()
    harness.hear()
    harness.say(go=1, kill="step-end:3")
    assert harness.hear()["halt"] == "step-end:3"
    harness.process.send_signal(signal.SIGTERM)
    harness.say(go=1)
    assert harness.end() == "end\n"
    assert (place.work / "emergency.ready").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_kill_point_of_another_rank_is_passed(place, rank):
    harness = Harness(place, SCRIPT.format(then="pass"), kill=f"start:1@{rank}")
    harness.hear()
    if rank == 0:
        assert harness.hear()["halt"] == "start:1"
        harness.say(go=1)
    assert harness.end() == "end\n"


HELPER = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "print('helper', flush=True)"], check=True)
"""


def test_the_end_of_what_a_program_runs_before_it_trains_is_not_its_finish(place):
    script = HELPER + SCRIPT.format(then="pass")
    harness = Harness(place, script, kill="finish:1")
    assert harness.hear()["hello"]["pid"] == harness.process.pid
    said = harness.hear()
    assert (said["halt"], said["pid"]) == ("finish:1", harness.process.pid)
    assert said["step"] == 4
    harness.say(go=1)
    assert harness.end() == "helper\nend\n"


def test_a_harness_that_is_gone_holds_nobody(place):
    harness = Harness(place, SCRIPT.format(then="pass"), kill="forward:3")
    harness.hear()
    assert harness.hear()["halt"] == "forward:3"
    harness.lines.close()
    harness.connection.close()
    harness.listener.close()
    out, _ = harness.process.communicate(timeout=100)
    assert out == "end\n"


def test_a_hang_shows_its_stacks(place):
    script = (
        "import signal\nprint('up', flush=True)\ndef stuck(): signal.pause()\nstuck()\n"
    )
    harness = Harness(place, script)
    harness.hear()
    assert harness.process.stdout.readline() == "up\n"
    path = harness.trace / f"{harness.process.pid}.stacks"
    # What is printed first says only that the call is about to be made: asked again until
    # it is. The handler runs at once; the pause returns only for Python's own.
    for _ in range(2000):
        harness.process.send_signal(signal.SIGRTMIN + 10)
        select.select([], [], [], 0.005)
        if path.exists() and "in stuck" in path.read_text():
            break
    assert "in stuck" in path.read_text()
    harness.process.kill()
    harness.end()


@pytest.mark.parametrize("outer_first", [True, False])
def test_what_follows_a_signal_is_counted_from_it_and_may_halt_in_its_handler(
    place, outer_first
):
    """The handler runs within the first halt, before any message could be read."""
    orders = {"kill": "step-end:2", "then": ["save-begin:1", "step-end:1@0"]}
    harness = Harness(place, SCRIPT.format(then="pass"), **orders)
    harness.hear()
    outer = harness.hear()
    assert outer["halt"] == "step-end:2"
    harness.inject()
    harness.process.send_signal(signal.SIGTERM)
    inner = harness.hear()
    assert inner["halt"] == "+save-begin:1"
    assert not (place.work / "emergency.pt").exists()
    # The halt in the handler reads both answers.
    for halt in (outer, inner) if outer_first else (inner, outer):
        harness.say(go=1, id=halt["id"])
    later = harness.hear()
    assert (later["halt"], later["step"]) == ("+step-end:1@0", 3)
    harness.say(go=1)
    assert harness.end() == "end\n"


def test_nothing_follows_a_signal_that_was_never_sent(place):
    orders = {"kill": "step-end:2", "then": ["step-end:1"]}
    harness = Harness(place, SCRIPT.format(then="pass"), **orders)
    harness.hear()
    harness.hear()
    harness.say(go=1)
    assert harness.end() == "end\n"


@pytest.mark.parametrize(("rank", "waits"), [(0, 4), (1, 0)])
def test_a_slow_rank_waits_at_each_step(place, rank, waits):
    harness = Harness(place, SCRIPT.format(then="pass"), slow=[rank, 0.2])
    harness.hear()
    assert harness.end() == "end\n"
    (path,) = harness.trace.glob(f"{harness.process.pid}-*.trace")
    marks = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [mark["t"] for mark in marks if mark["k"] == "step"]
    gaps = [late - early for early, late in itertools.pairwise(steps)]
    assert len(steps) == 4
    if waits:
        assert min(gaps) >= 0.2
    else:
        assert min(gaps) < 0.2
