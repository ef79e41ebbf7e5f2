"""SIGTERM and SIGHUP end a run as Ctrl-C does: told, written, nothing left."""

import json
import os
import select
import signal
import sys
import textwrap

import pytest

from spotchaos.campaign.ending import ENDING, Ending, interruptible
from tests.safety.conftest import lines_in, wait_for_events

pytestmark = pytest.mark.timeout(600)  # whole runs, on a machine that may be busy

RUN = ("run", "--kill-at", "step-end:3", "--kill-at", "step-end:4", "--no-cache")
PROGRAM = ("--", "python", "train.py", "{out}")


def ended_by(machine, number, *, events, more_s=0.0, send=os.kill):
    """Start a run and end it by a signal; return status, output and its JSON report."""
    stream, report = machine.root / "events.jsonl", machine.root / "r.json"
    words = ("--jsonl", str(stream), "--json", str(report))
    run = machine.start(*RUN, *words, *PROGRAM)
    wait_for_events(run, stream, events)
    select.select([], [], [], more_s)
    assert run.poll() is None, run.stdout.read()
    send(run.pid, number)
    said, _ = run.communicate(timeout=60)
    assert machine.wait_until_nothing_is_left(5.0) == []
    return run.returncode, said, json.loads(report.read_text())


def as_timeout_does(pid, number):
    os.kill(pid, number)
    os.killpg(pid, number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_in_the_baseline_it_ends_as_by_ctrl_c(machine, number):
    status, said, report = ended_by(machine, number, events=2, send=as_timeout_does)
    assert (status, report["verdict"]) == (3, "unknown")
    assert "interrupted" in said
    assert "Traceback" not in said


def test_in_a_trial_the_trials_so_far_are_told(machine):
    status, said, report = ended_by(machine, signal.SIGTERM, events=12)
    assert status == 3
    assert "interrupted" in said
    assert "Traceback" not in said
    assert report["environment"]["mechanisms"]


def test_while_the_machine_is_probed_a_report_is_written_all_the_same(machine):
    probing = machine.work / "python-that-waits"
    probing.write_text("#!/bin/sh\nexec sleep 1000\n")
    code = f"""
        import sys
        from spotchaos.launch.isolation import mechanisms
        mechanisms.sys = type("", (), {{"executable": {str(probing)!r}}})
        probing = mechanisms._try_all
        def tell(folder):
            open("probing", "w").close()
            return probing(folder)
        mechanisms._try_all = tell
        from spotchaos.cli import main
        sys.argv[1:] = {[*RUN, "--json", "r.json", *PROGRAM]!r}
        main(prog_name="spotchaos")
    """
    probing.chmod(0o755)
    run = machine.start(command=[sys.executable, "-c", textwrap.dedent(code)])
    while run.poll() is None and not (machine.work / "probing").exists():
        select.select([], [], [], 0.05)
    run.send_signal(signal.SIGTERM)
    said, _ = run.communicate(timeout=60)
    assert machine.wait_until_nothing_is_left(5.0) == []
    assert run.returncode == 3, said
    assert json.loads((machine.work / "r.json").read_text())["verdict"] == "unknown"
    assert "Traceback" not in said


@pytest.mark.parametrize("name", ["imds", "s3"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_servers_end_quietly(machine, name, number):
    words = ("imds", "--provider", "aws") if name == "imds" else ("s3",)
    run = machine.start(*words)
    assert "http://127.0.0.1" in run.stdout.readline()
    run.send_signal(number)
    said, _ = run.communicate(timeout=60)
    assert (run.returncode, "Traceback" in said) == (0, False), said
    assert machine.wait_until_nothing_is_left(5.0) == []


TESTS = """
from pathlib import Path
def test_a_campaign(spotchaos):
    open("begun", "w").close()
    spotchaos.run([{python!r}, "train.py", "{{out}}"], folder=Path({work!r}), trials=2)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_pytest_leaves_nothing(machine, number):
    tests = machine.work / "test_it.py"
    tests.write_text(TESTS.format(python=sys.executable, work=str(machine.work)))
    words = ["-p", "no:cacheprovider", "-q", f"--basetemp={machine.home / 'base'}"]
    run = machine.start(command=[sys.executable, "-m", "pytest", *words, str(tests)])
    while run.poll() is None and not list(machine.tmp.glob("*/*/u0")):
        select.select([], [], [], 0.05)
    run.send_signal(number)
    said, _ = run.communicate(timeout=60)
    assert run.returncode == (2 if number == signal.SIGTERM else -9), said
    assert machine.wait_until_nothing_is_left(5.0) == []


class Clock:
    now_s = 0.0

    def monotonic(self):
        return self.now_s


def test_one_wish_that_comes_twice_interrupts_once():
    clock = Clock()
    ending = Ending(clock)
    with pytest.raises(KeyboardInterrupt):
        ending.take(signal.SIGTERM, None)
    ending.take(signal.SIGTERM, None)
    clock.now_s = 1.5
    with pytest.raises(KeyboardInterrupt):
        ending.take(signal.SIGINT, None)


def test_what_is_being_completed_is_completed():
    ending = Ending(Clock())
    with ending.completed():
        ending.take(signal.SIGTERM, None)
    assert ending.pop()
    assert not ending.pop()


def test_whoever_decided_otherwise_is_not_overruled():
    def own(number, frame):
        raise AssertionError

    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, own),
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    try:
        with interruptible():
            assert signal.getsignal(signal.SIGTERM) is own
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGINT) == ENDING.take
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_events_are_counted_by_whole_lines(tmp_path):
    assert lines_in(tmp_path / "none") == 0
    (tmp_path / "some").write_text("{}\n{}")
    assert lines_in(tmp_path / "some") == 1
