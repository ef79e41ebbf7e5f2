"""File ops are recorded and held inside an attempt, under every kind of namespace."""

import json

import pytest

from spotchaos.launch.attempt.attempt import Exited
from spotchaos.launch.attempt.spec import FileOrders
from spotchaos.launch.supervisor.supervisor import supervisor_available
from spotchaos.trial import trial
from tests.launch.conftest import BOUND_S, wait_for_halt

SOURCE = """
import os
with open("ckpt.tmp", "wb") as file:
    file.write(b"1234")
os.rename("ckpt.tmp", "ckpt")
print("renamed")
"""


@pytest.fixture(autouse=True)
def _needs_a_listener():
    available, why = supervisor_available()
    if not available:
        pytest.skip(why)


def ops_of(attempt):
    lines = attempt.oplog.read_text().splitlines()
    return [line["op"] for line in map(json.loads, lines) if "op" in line]


@pytest.mark.parametrize("mechanisms", ["best", "user"], indirect=True)
def test_file_ops_are_recorded(run, view):
    attempt = run(SOURCE, files=FileOrders())
    assert [op for op in ops_of(attempt) if op in ("creat", "write", "rename")] == [
        "creat",
        "write",
        "rename",
    ]
    assert view.path("ckpt").read_bytes() == b"1234"
    assert attempt.survivors == ()


@pytest.mark.parametrize("mechanisms", ["best", "user"], indirect=True)
def test_a_file_op_is_held_frozen_and_reclaimed(start, view):
    attempt = start(SOURCE, files=FileOrders(points=("rename:1",)))
    halted = wait_for_halt(attempt)
    assert halted.kill_point == "rename:1"
    assert attempt.settle("rename:1", BOUND_S)
    attempt.freeze()
    attempt.reclaim()
    assert [c.path for c in view.changed()] == ["ckpt.tmp"]


@pytest.mark.parametrize("mechanisms", ["best", "user"], indirect=True)
def test_a_held_file_op_goes_on_when_told(start, view):
    attempt = start(SOURCE, files=FileOrders(points=("rename:1",)))
    wait_for_halt(attempt)
    attempt.go_on()
    assert attempt.wait(BOUND_S) == Exited(0), attempt.output_tail
    assert [c.path for c in view.changed()] == ["ckpt"]


def test_ranks_are_under_one_filter(run):
    attempt = run(
        "import os; open(os.environ['RANK'], 'w')", ranks=2, files=FileOrders()
    )
    assert ops_of(attempt).count("creat") == 2


def test_the_log_ends_although_a_daemon_outlives_the_program(start):
    attempt = start(
        """
        import os, time
        if os.fork():
            os._exit(0)
        os.setsid()
        while True:
            time.sleep(1)
        """,
        files=FileOrders(),
    )
    assert attempt.wait(BOUND_S) == Exited(0)
    assert attempt.end_leftovers() == 1
    trial._await_log(attempt)
    assert ops_of(attempt)[-1] == "end"
