"""Programs that close descriptors they did not open are observed and judged as any other."""

import os
import threading

import pytest

from spotchaos.probe.halt import Harness
from spotchaos.probe.record import Appending, Record
from tests.safety.conftest import PROGRAM

pytestmark = pytest.mark.timeout(600)  # whole runs, on a machine that may be busy

CLOSING = "import os\nos.closerange(3, 4096)\n"
EACH_STEP = PROGRAM.replace(
    "    optimizer.step()\n", "    optimizer.step()\n    os.closerange(3, 4096)\n"
)
DAEMON = """
import os, sys
# As in a book on Unix: the parent waits here, which keeps the run's status.
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.setsid()
os.closerange(3, 4096)
"""
FORGETS = EACH_STEP.replace('optimizer.load_state_dict(state["optimizer"])', "pass")


@pytest.mark.parametrize(
    "source",
    [
        EACH_STEP,
        pytest.param(CLOSING + PROGRAM, marks=pytest.mark.slow),
        pytest.param(DAEMON + PROGRAM, marks=pytest.mark.slow),
    ],
)
def test_a_right_program_that_closes_all_descriptors_holds(machine, source):
    (machine.work / "train.py").write_text(source)
    words = ("run", "--kill-at", "step-end:3", "--no-cache")
    status, said = machine.run(*words, "--", "python", "train.py", "{out}")
    assert status == 0, said
    assert "HELD" in said


def test_a_wrong_program_that_closes_all_descriptors_does_not_hold(machine):
    assert FORGETS != EACH_STEP
    (machine.work / "train.py").write_text(FORGETS)
    words = ("run", "--kill-at", "step-end:3", "--no-cache")
    status, said = machine.run(*words, "--", "python", "train.py", "{out}")
    assert status == 1, said
    assert "optimizer-not-restored" in said


def replaced_by(path, number):
    """Close a descriptor of ours and let a file of the program's have its number."""
    os.close(number)
    mine = os.open(path, os.O_RDWR | os.O_CREAT)
    os.dup2(mine, number)
    os.close(mine)


def test_what_took_our_number_is_neither_written_nor_closed(tmp_path):
    record = Record(str(tmp_path))
    lost = []
    record.at_loss.append(lambda: lost.append(True))
    record.write("note", name="a")
    number = record._file._descriptor
    replaced_by(tmp_path / "mine", number)
    record.write("note", name="b")
    record.write("note", name="c")
    assert lost == [True]
    (trace,) = tmp_path.glob("*.trace")
    assert [line.count(b'"note"') for line in trace.read_bytes().splitlines()] == [
        1
    ] * 3
    replaced_by(tmp_path / "mine", record._file._descriptor)
    record.forget()
    assert (tmp_path / "mine").read_bytes() == b""
    os.write(number, b"still open")
    assert (tmp_path / "mine").read_bytes() == b"still open"


def test_a_page_whose_descriptor_is_lost_is_not_closed(tmp_path):
    record = Record(str(tmp_path))
    before = set(os.listdir("/proc/self/fd"))
    record.write("note", name="a")
    ours = {int(name) for name in set(os.listdir("/proc/self/fd")) - before}
    for number in ours:
        if os.path.exists(f"/proc/self/fd/{number}"):
            replaced_by(tmp_path / "mine", number)
    record.forget()
    for number in ours:
        if os.path.exists(f"/proc/self/fd/{number}"):
            os.close(number)  # or it was closed for us


def test_the_harness_is_found_again(tmp_path):
    import socket

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    harness = Harness(str(tmp_path / "s"))
    assert harness.say({"hello": 1})
    number = harness._socket.fileno()
    replaced_by(tmp_path / "mine", number)
    first, _ = listener.accept()

    def answer():
        second, _ = listener.accept()
        assert second.recv(4096).startswith(b'{"halt": "step-end:3"')
        second.sendall(b'{"go": true, "id": 1, "kill": "step-end:4"}\n')
        second.close()

    with first, listener:
        answering = threading.Thread(target=answer)
        answering.start()
        harness.hold("step-end:3", rank=0, step=3)
        answering.join()
    assert harness.new_kill == "step-end:4"
    assert (tmp_path / "mine").read_bytes() == b""
    harness.forget()
    os.close(number)


def test_a_log_that_was_closed_goes_on(tmp_path):
    log = Appending(str(tmp_path / "log"), flags=os.O_CREAT | os.O_EXCL)
    assert not log.write(b"a\n")
    os.close(log._descriptor)
    assert log.write(b"b\n")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"a\nb\n"
