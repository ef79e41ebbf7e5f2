"""Halts, frozen processes and signals: what the harness does to a running attempt."""

import dataclasses
import os
import signal
import sys
import threading

import pytest

from spotchaos.errors import HarnessError
from spotchaos.launch.attempt.attempt import Exited, Halted, end_everything
from spotchaos.launch.isolation import process_tree
from spotchaos.trace.format import COUNTER_SLOTS, PROBE_SITES
from tests.launch.conftest import BOUND_S, FAKE_PROBE, wait_for_halt

everywhere = pytest.mark.parametrize(
    "mechanisms", ["best", "user", "none"], indirect=True
)

# Prints "up", then counts in a file as fast as it can; says which signals came.
COUNTING = """
import os, signal, sys, time
for name in ("TERM", "USR1", "INT", "HUP"):
    number = signal.Signals["SIG" + name]
    signal.signal(number, lambda n, f: os.write(1, b"%s got %d\\n" % (who, n)))
who = b"leader"
"""


def wait_for_output(attempt, text, count=1):
    while attempt.output_tail.count(text) < count:
        assert attempt.wait(0.02) is None, attempt.output_tail


@everywhere
def test_a_halt_is_told_and_released(start):
    attempt = start(FAKE_PROBE + "print('answer', halt('step-end:3', 3))")
    halted = wait_for_halt(attempt)
    assert halted == Halted("step-end:3", 0, halted.pid, 3)
    assert attempt.wait(0.1) is None
    attempt.go_on(kill="step-end:9")
    assert attempt.wait(BOUND_S) == Exited(0)
    assert attempt.output_tail == "answer {'go': True, 'id': 3, 'kill': 'step-end:9'}"


def test_one_rank_of_two_is_released(start):
    source = FAKE_PROBE + "halt('step-end:3', 3); print('went on', rank, flush=True)"
    attempt = start(source, ranks=2)
    halted = {wait_for_halt(attempt).rank for _ in range(2)}
    assert halted == {0, 1}
    attempt.go_on(1)
    wait_for_output(attempt, "went on")
    assert attempt.output_tail == "went on 1"


def test_ranks_settle_at_their_own_halt_or_blocked(start):
    attempt = start(
        FAKE_PROBE
        + """
if rank == 0:
    halt("step-end:3", 3)
elif rank == 1:
    halt("step-end:3", 3)
else:
    time.sleep(1000)
""",
        ranks=3,
    )
    wait_for_halt(attempt)
    assert attempt.settle("step-end:3", BOUND_S)


def test_a_rank_that_computes_does_not_settle(start):
    attempt = start(
        FAKE_PROBE
        + """
if rank == 0:
    halt("step-end:3", 3)
while True:
    pass
""",
        ranks=2,
    )
    wait_for_halt(attempt)
    while len(attempt._ranks()) < 2:
        assert attempt.wait(0.02) is None
    assert not attempt.settle("step-end:3", 0.6)
    assert attempt.settle("step-end:3@0", 0.6)


@pytest.mark.parametrize("way", ["group", "signal"])
@pytest.mark.parametrize("mechanisms", ["best", "user", "none"], indirect=True)
def test_frozen_processes_do_nothing_until_thawed(
    start, view, mechanisms, way, monkeypatch
):
    if way == "signal":
        without = dataclasses.replace(mechanisms, control_group=None)
        monkeypatch.setattr(view.workspace, "mechanisms", without)
    elif mechanisms.control_group is None:
        pytest.skip("no control group here")
    attempt = start(
        """
        import os, threading
        def count(name):
            n = 0
            while True:
                n += 1
                with open(name, "a") as file:
                    file.write("x")
        for name in "ab":
            if os.fork() == 0:
                threading.Thread(target=count, args=(name,)).start()
                count(name + "2")
        count("c")
        """
    )

    def sizes():
        return {c.path: c.size for c in view.changed()}

    while len(sizes()) < 5:
        assert attempt.wait(0.02) is None, attempt.output_tail
    attempt.freeze()
    frozen = sizes()
    ticks = [p.cpu_ticks for p in attempt.members()]
    assert len(ticks) == 3
    assert attempt.wait(0.3) is None
    assert sizes() == frozen
    assert [p.cpu_ticks for p in attempt.members()] == ticks
    attempt.thaw()
    while any(sizes()[name] == frozen[name] for name in frozen):
        assert attempt.wait(0.02) is None
    attempt.freeze()
    attempt.reclaim()
    assert attempt.members() == []


# A launcher with two ranks in sessions of their own, each with a forked worker.
LAUNCHER = """
import os, subprocess, sys
code = sys.argv[1]
ranks = [
    subprocess.Popen(
        [sys.executable, "-I", "-c", code],
        start_new_session=True,
        env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
    )
    for rank in range(2)
]
who = "launcher"
"""
LISTENING = """
import os, signal, sys, time
def note(number, frame):
    os.write(1, (who + " got it;\\n").encode())
signal.signal(signal.SIGUSR1, note)
os.write(1, (who + " up;\\n").encode())
while True:
    time.sleep(1)
"""
RANK = (
    FAKE_PROBE
    + """
if os.fork() == 0:
    harness.close()
    who = f"worker{rank}"
else:
    who = f"rank{rank}"
"""
    + LISTENING
)
EVERYBODY = {"launcher", "rank0", "rank1", "worker0", "worker1"}


@everywhere
@pytest.mark.parametrize(
    ("target", "reached"),
    [
        ("all", EVERYBODY),
        ("leader", {"launcher"}),
        ("launcher", {"launcher"}),
        ("group", {"launcher"}),
        ("workers", {"worker0", "worker1"}),
        ("rank:1", {"rank1"}),
        ("rank:0,1", {"rank0", "rank1"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_signal_reaches_whom_it_names(start, target, reached):
    command = (sys.executable, "-I", "-c", LAUNCHER + LISTENING, RANK)
    attempt = start("", command=command)
    wait_for_output(attempt, "up;", 5)
    while len(attempt._ranks()) < 2:
        assert attempt.wait(0.02) is None
    assert attempt.signal("USR1", target) == len(reached)
    wait_for_output(attempt, "got it;", len(reached))
    lines = [line for line in attempt.output_tail.splitlines() if "got it" in line]
    assert {line.split()[0] for line in lines} == reached


def test_a_signal_to_nobody_is_one_clear_sentence(start):
    attempt = start("import time; time.sleep(1000)")
    for nobody in ("rank:7", "rank:7,8"):
        with pytest.raises(HarnessError, match=f"no process that '{nobody}' names"):
            attempt.signal("TERM", nobody)


@everywhere
def test_one_rank_can_be_reclaimed_alone(start):
    command = (sys.executable, "-I", "-c", LAUNCHER + LISTENING, RANK)
    attempt = start("", command=command)
    wait_for_output(attempt, "up;", 5)
    while len(attempt._ranks()) < 2:
        assert attempt.wait(0.02) is None
    attempt.reclaim("rank:0")
    assert len(attempt.members()) == 4
    assert 0 not in {h.rank for h in attempt._ranks().values() if alive(h.host_pid)}


def alive(pid):
    return process_tree.read_process(pid) is not None


@everywhere
def test_the_signal_that_ended_the_leader_is_its_status(start):
    attempt = start("import time; print('up', flush=True); time.sleep(1000)")
    wait_for_output(attempt, "up")
    attempt.signal("TERM", "leader")
    assert attempt.wait(BOUND_S) == Exited(-15)
    assert attempt.exit_code == -15


def test_a_signal_that_we_ignore_is_not_ignored_by_the_program(run):
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        attempt = run(
            """
            import signal
            print(signal.getsignal(signal.SIGHUP).name)
            print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
            """
        )
    finally:
        signal.signal(signal.SIGHUP, handler)
    assert attempt.output_tail == "SIG_DFL\nTrue"


def test_a_stopped_process_stays_stopped_after_a_thaw(start):
    attempt = start("import time; print('up', flush=True); time.sleep(1000)")
    wait_for_output(attempt, "up")
    attempt.freeze()
    attempt.signal("STOP", "all")
    attempt.thaw()
    (process,) = attempt.members()
    while not process_tree.is_stopped(process.pid):
        assert attempt.wait(0.02) is None
    attempt.signal("CONT", "all")
    while process_tree.is_stopped(process.pid):
        assert attempt.wait(0.02) is None


@everywhere
def test_ranks_get_the_environment_of_torchrun(run):
    attempt = run(
        """
        import os
        names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR".split()
        print(*[os.environ[name] for name in names], int(os.environ["MASTER_PORT"]) > 0)
        """,
        ranks=2,
    )
    assert sorted(attempt.output_tail.splitlines()) == [
        "0 0 2 2 127.0.0.1 True",
        "1 1 2 2 127.0.0.1 True",
    ]


def test_a_rank_that_fails_ends_the_others(run):
    run(
        """
        import os, sys, time
        if os.environ["RANK"] == "1":
            sys.exit(7)
        time.sleep(1000)
        """,
        ranks=3,
        status=7,
    )


def test_a_signal_to_our_launcher_is_passed_on(start):
    attempt = start(
        """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda n, f: sys.exit(0))
        print("up", flush=True)
        time.sleep(1000)
        """,
        ranks=2,
    )
    wait_for_output(attempt, "up", 2)
    attempt.signal("TERM", "launcher")
    assert attempt.wait(BOUND_S) == Exited(0)


def test_progress_is_read_from_the_counters(start):
    size = COUNTER_SLOTS * 8
    attempt = start(
        FAKE_PROBE
        + f"""
import mmap, struct
path = orders["trace"] + f"/{{os.getpid()}}-abc.counters"
with open(path, "w+b") as file:
    file.truncate({size})
    page = mmap.mmap(file.fileno(), {size})
struct.pack_into("<QQ", page, 0, 4, 1)
halt("step-end:4", 4)
"""
    )
    wait_for_halt(attempt)
    steps, sites = attempt.progress()[0]
    assert steps == 4
    assert sites[PROBE_SITES[0]] == 1
    assert set(sites) == set(PROBE_SITES)


def test_stacks_say_where_who_hangs(start):
    attempt = start(
        FAKE_PROBE
        + """
import faulthandler, signal
file = open(orders["trace"] + f"/{os.getpid()}.stacks", "w")
faulthandler.register(signal.SIGRTMIN + 10, file=file, all_threads=True)
def hang_here():
    halt("start:1", 0)
hang_here()
"""
    )
    wait_for_halt(attempt)
    stacks = attempt.stacks()
    assert stacks.startswith("rank 0, pid ")
    assert "in hang_here" in stacks


def test_a_program_that_vanishes_from_outside_is_an_error(start):
    attempt = start("import time; print('up', flush=True); time.sleep(1000)")
    wait_for_output(attempt, "up")
    os.kill(attempt._init, 9)
    with pytest.raises(HarnessError, match="vanished although nobody ended it"):
        attempt.wait(BOUND_S)


def test_end_everything_ends_what_another_thread_waits_for(start):
    attempt = start("import time; time.sleep(1000)")
    seen = []
    waiter = threading.Thread(target=lambda: seen.append(attempt.wait(BOUND_S)))
    waiter.start()
    end_everything()
    waiter.join(BOUND_S)
    assert seen == [None]
    assert attempt.members() == []


def test_only_the_end_of_the_output_is_kept_in_mind(run):
    attempt = run("for n in range(1000): print('line', n)")
    assert attempt.output_tail.splitlines()[-1] == "line 999"
    assert len(attempt.output_tail.splitlines()) == 60


def test_a_command_that_cannot_be_executed_says_so(start):
    attempt = start("", command=("/nowhere/python",))
    assert attempt.wait(BOUND_S) == Exited(127)
    assert attempt.output_tail == "/nowhere/python: No such file or directory"
