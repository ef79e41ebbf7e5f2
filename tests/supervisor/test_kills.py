"""A real kill at any op leaves the very folder that the log says it leaves."""

import os
import select
import signal
import sys
import threading
from pathlib import Path

import pytest

from spotchaos.launch.supervisor.seccomp import SeccompError
from spotchaos.launch.supervisor.supervisor import supervisor_available
from spotchaos.persistence.crash_states import build, cuts
from spotchaos.persistence.materialise import expected, observed
from spotchaos.persistence.tokens import StateToken

available, reason = supervisor_available()
pytestmark = pytest.mark.skipif(not available, reason=f"no supervisor here: {reason}")


def every_kill(history):
    for number in range(1, history.log.last + 1):
        yield f"file-op:{number}", f"K@{number}"
        yield f"file-op:{number}/after", f"K@{number + 1}"
        op = history.op(number)
        for cut in cuts(op.length) if op.kind == "write" else ():
            yield f"file-op:{number}+{cut}", f"K@{number}+{cut}"


@pytest.mark.parametrize(
    "name", ["in_place", "replaced", "numbered", "durable", "linked"]
)
def test_each_kill_leaves_the_constructed_state(bench, protocols, name):
    protocol = getattr(protocols, name)

    def program():
        protocol(bench.root)
        return 0

    _, history = bench.record(program)
    different, kills = [], 0
    for point, token in every_kill(history):
        bench.clear()
        bench.killed(program, point)
        kills += 1
        state = build(history, StateToken.parse(token))
        if observed(bench.root) != expected(history, state):
            different.append((point, token))
    assert kills > 50
    assert different == []


def test_kills_inside_a_save_of_torch_leave_the_constructed_states(bench):
    import torch

    # Made before the fork: a parent that computes with tensors hangs its children.
    value = {"w": torch.zeros(4000)}

    def program():
        with open(bench.root / "ckpt.tmp", "wb") as file:
            torch.save(value, file)
        os.replace(bench.root / "ckpt.tmp", bench.root / "ckpt")
        torch.save(value, str(bench.root / "ckpt"))
        return 0

    _, history = bench.record(program)
    points = list(every_kill(history))
    assert len(points) > 10
    for point, token in points:
        bench.clear()
        bench.killed(program, point)
        state = build(history, StateToken.parse(token))
        assert observed(bench.root) == expected(history, state), point


def test_a_halt_names_the_op_and_go_lets_it_happen(bench, protocols):
    running, halt, wire = bench.halted(
        lambda: protocols.replaced(bench.root), "rename:2", "write:9/half"
    )
    assert halt["halt"] == "rename:2"
    assert (halt["op"], halt["path"], halt["to"]) == ("rename", "last.tmp", "last")
    assert halt["pid"] == running.program
    assert set(os.listdir(bench.root)) == {"last", "last.tmp"}
    wire.write(b'{"go": 1}\n')
    wire.flush()
    assert b'"write:9/half"' in wire.readline()
    assert (bench.root / "last.tmp").stat().st_size == 5
    wire.write(b'{"go": 1}\n')
    wire.flush()
    assert running.wait() == 0
    running.finish()
    assert protocols.newest(protocols.as_files(bench.root)) == 3


def test_half_a_write_is_in_the_file_while_it_is_held(bench):
    content = os.urandom(20_000)
    running, halt, wire = bench.halted(
        lambda: (bench.root / "a").write_bytes(content) and 0, "write:1/half"
    )
    assert halt["through"] == 8192
    assert (bench.root / "a").read_bytes() == content[:8192]
    wire.write(b'{"go": 1}\n')
    wire.flush()
    assert running.wait() == 0
    running.finish()
    assert (bench.root / "a").read_bytes() == content


def test_an_op_counts_on_its_own_rank(bench):
    code = (
        "import os, sys\n"
        f"os.chdir({str(bench.root)!r})\n"
        "for i in range(3):\n"
        "    open(f'{os.environ[\"RANK\"]}-{i}', 'w')\n"
    )
    both = [
        "sh",
        "-c",
        'RANK=0 "$@"; RANK=1 "$@"',
        "sh",
        sys.executable,
        "-S",
        "-c",
        code,
    ]
    halt = bench.killed(both, "file-op:2@1")
    assert (halt["rank"], halt["path"]) == (1, "1-1")
    assert sorted(os.listdir(bench.root)) == ["0-0", "0-1", "0-2", "1-0"]


def test_counting_over_all_ranks_follows_the_log(bench):
    code = f"import os; os.chdir({str(bench.root)!r}); open(os.environ['RANK'], 'w')"
    both = [
        "sh",
        "-c",
        'RANK=0 "$@"; RANK=1 "$@"',
        "sh",
        sys.executable,
        "-S",
        "-c",
        code,
    ]
    halt = bench.killed(both, "file-op:2@all")
    assert (halt["rank"], halt["n"]) == (1, 2)


def test_the_others_go_on_while_one_is_held_if_they_may(bench):
    code = (
        f"import os; os.chdir({str(bench.root)!r})\n"
        "for i in range(20): open(f'{os.environ[\"RANK\"]}-{i}', 'w')\n"
    )
    both = ["sh", "-c", 'RANK=1 "$@" & RANK=0 "$@"; wait', "sh"]
    running, halt, wire = bench.halted(
        [*both, sys.executable, "-S", "-c", code], "file-op:1@1", others="run"
    )
    assert halt["path"] == "1-0"
    free = {f"0-{i}" for i in range(20)}
    moment = threading.Event()
    for _ in range(3000):
        if set(os.listdir(bench.root)) == free:
            break
        moment.wait(0.01)
    assert set(os.listdir(bench.root)) == free
    wire.write(b'{"go": 1}\n')
    wire.flush()
    assert running.wait() == 0
    running.finish()
    assert len(os.listdir(bench.root)) == 40


def test_nobody_goes_on_while_one_is_held_otherwise(bench):
    def program():
        if os.fork() == 0:
            (bench.root / "other").write_text("x")
            os._exit(0)
        os.wait()
        (bench.root / "mine").write_text("x")
        return 0

    running, halt, wire = bench.halted(program, "file-op:1")
    assert halt["path"] == "other"
    assert os.listdir(bench.root) == []
    os.kill(running.program, signal.SIGKILL)
    os.kill(halt["pid"], signal.SIGKILL)
    running.wait()
    running.finish()
    wire.close()
    assert os.listdir(bench.root) == []


def test_a_signal_during_a_halt_reaches_the_handler_after_it(bench):
    def program():
        def handler(*_):
            (bench.root / "handled").write_text("x")

        signal.signal(signal.SIGTERM, handler)
        (bench.root / "a").write_text("x")
        return 0 if (bench.root / "handled").exists() else 1

    running, _, wire = bench.halted(program, "write:1")
    os.kill(running.program, signal.SIGTERM)
    wire.write(b'{"go": 1}\n')
    wire.flush()
    assert running.wait() == 0
    running.finish()
    assert (bench.root / "a").read_text() == "x"


def test_a_harness_that_goes_away_ends_the_program(bench):
    code = f"open({str(bench.root / 'a')!r}, 'w').write('x')"
    running, _, wire = bench.halted([sys.executable, "-S", "-c", code], "write:1")
    wire.close()
    with pytest.raises(SeccompError):
        running.wait()
    running.finish()
    assert (bench.root / "a").read_text() == ""


def await_death(pid):
    """Return once a process has died: until then its held op could still be let go."""
    for _ in range(2000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state in "ZX":
            return
        select.select([], [], [], 0.005)
    raise AssertionError(f"process {pid} did not die")


def test_killing_one_rank_leaves_the_state_in_which_it_died_earlier(bench):
    code = (
        f"import os; os.chdir({str(bench.root)!r}); rank = os.environ['RANK']\n"
        "for i in range(3):\n"
        "    with open(f'{rank}.tmp', 'w') as file: file.write(rank * (i + 1))\n"
        "    os.replace(f'{rank}.tmp', f'shard-{rank}')\n"
    )
    python = [sys.executable, "-S", "-c", code]
    both = ["sh", "-c", 'RANK=1 "$@" & RANK=0 "$@"; wait', "sh", *python]
    _, history = bench.record(both)
    mine = [op.number for op in history.ops if op.rank == 1]
    for nth in (1, 2, 3, 5, 9):
        bench.clear()
        running, halt, wire = bench.halted(both, f"file-op:{nth}@1")
        os.kill(halt["pid"], signal.SIGKILL)
        await_death(halt["pid"])
        wire.write(b'{"go": 1}\n')
        wire.flush()
        assert running.wait() == 0
        running.finish()
        wire.close()
        end = history.log.last + 1
        token = StateToken(letter="K", number=end, early=((1, mine[nth - 1]),))
        assert observed(bench.root) == expected(history, build(history, token)), nth
