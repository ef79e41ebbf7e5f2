"""States in which one rank died earlier: each one drawn is left by real kills, and no other."""

import json
import os
import signal
import sys

import pytest

from spotchaos.persistence.crash_states import build
from spotchaos.persistence.materialise import expected, observed
from spotchaos.persistence.rank_cuts import Barrier, early_tokens

RANKS = """
import os, sys, time
os.chdir(sys.argv[1])
rank, here, there = int(os.environ["RANK"]), int(sys.argv[2]), int(sys.argv[3])

def barrier():
    os.write(there, b"x")
    if os.read(here, 1) != b"x":
        os._exit(0)  # the other one died

def has_been_written(step):
    try:
        with open("shard-1") as file:
            return file.read() == f"1{step}" * 4
    except FileNotFoundError:
        return False

for step in (1, 2):
    # One order of many, for the recording alone: rank 1 before rank 0.
    while rank == 0 and "RECORDED" in os.environ and not has_been_written(step):
        time.sleep(0.001)
    with open(f"shard-{rank}", "w") as file:
        file.write(f"{rank}{step}" * 4)
    barrier()
    if rank == 0:
        with open("meta.tmp", "w") as file:
            file.write(f"step {step}")
        os.replace("meta.tmp", "meta")
    barrier()
"""
# What each rank does up to each barrier; nobody passes one alone.
PHASES = ((2, 2), (3, 0), (2, 2), (3, 0))


@pytest.fixture
def both(bench):
    """Return a program that runs two ranks with a barrier between them."""
    python = [sys.executable, "-I", "-S", "-c", RANKS, str(bench.root)]

    def program():
        pipes = [os.pipe() for _ in range(2)]
        children = []
        for rank in (0, 1):
            child = os.fork()
            if child == 0:
                here, there = pipes[rank][0], pipes[1 - rank][1]
                # Its death must be seen by the other: no copy of a pipe may be left.
                os.close(pipes[rank][1])
                os.close(pipes[1 - rank][0])
                os.set_inheritable(here, True)
                os.set_inheritable(there, True)
                os.environ["RANK"] = str(rank)
                os.execv(python[0], [*python, str(here), str(there)])
            children.append(child)
        for fds in pipes:
            for fd in fds:
                os.close(fd)
        for child in children:
            os.waitpid(child, 0)
        return 0

    return program


def recorded(bench, both):
    """Return the history of a whole run, its barriers, and each rank's op numbers."""
    os.environ["RECORDED"] = "1"
    status, history = bench.record(both)
    del os.environ["RECORDED"]
    assert status == 0
    mine = {r: [o.number for o in history.ops if o.rank == r] for r in (0, 1)}
    found, done = [], {0: 0, 1: 0}
    for phase in PHASES:
        for rank, count in enumerate(phase):
            done[rank] += count
        later = [(r, mine[r][done[r]]) for r in (0, 1) if done[r] < len(mine[r])]
        found.append(Barrier(tuple(later)))
    return history, found, mine


def kill_one_then_all(bench, both, early, done=None):
    """Kill rank 1 before its op `early`, then all after op `done` of rank 0, from 1.

    Without `done` rank 0 goes on for as long as it can.
    """
    bench.clear()
    points = [f"file-op:{early}@1"] + ([f"file-op:{done}@0/after"] if done else [])
    # Which of the two comes first is open; the one that is held stops nobody else.
    running, halt, wire = bench.halted(both, *points, others="run")
    try:
        halts = {halt["rank"]: halt}
        if done:
            halt = json.loads(wire.readline())
            halts[halt["rank"]] = halt
            os.kill(running.program, signal.SIGKILL)
            os.kill(halts[0]["pid"], signal.SIGKILL)
        os.kill(halts[1]["pid"], signal.SIGKILL)
    except BaseException:
        os.kill(running.supervisor, signal.SIGKILL)
        raise
    running.wait()
    running.finish()
    wire.close()


def test_each_state_of_a_rank_that_died_earlier_is_left_by_real_kills(bench, both):
    history, barriers, mine = recorded(bench, both)
    tokens = [t for t in early_tokens(history, barriers) if t.early[0][0] == 1]
    assert len(tokens) == 8  # before each op of its two shards, and one of rank 0's
    for token in tokens:
        early = mine[1].index(token.early[0][1]) + 1
        done = sum(number < token.number for number in mine[0])
        kill_one_then_all(bench, both, early, done)
        assert observed(bench.root) == expected(history, build(history, token)), token


def test_left_alone_the_other_rank_gets_exactly_as_far_as_the_last_state(bench, both):
    history, barriers, mine = recorded(bench, both)
    for early, number in enumerate(mine[1], 1):
        kill_one_then_all(bench, both, early)
        mine_too = ((1, number),)
        tokens = [t for t in early_tokens(history, barriers) if t.early == mine_too]
        if not tokens:
            continue  # the other had made all that it could before
        furthest = max(tokens, key=lambda t: t.number)
        assert observed(bench.root) == expected(history, build(history, furthest))
