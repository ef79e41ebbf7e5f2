"""The fall-back recorder reads the same op log out of strace's text."""

import subprocess
import sys
from pathlib import Path

import pytest

from spotchaos.errors import HarnessError
from spotchaos.launch.supervisor import strace
from spotchaos.persistence.crash_states import build
from spotchaos.persistence.history import History
from spotchaos.persistence.materialise import expected, observed
from spotchaos.persistence.tokens import StateToken

available, reason = strace.strace_available()
traced = pytest.mark.skipif(not available, reason=f"no strace here: {reason}")
INTERPRETER = Path(sys.executable).resolve()  # a wrapper would fork dozens of processes


def record(root, command, tmp_path):
    start = strace.scan([str(root)])
    trace = tmp_path / "trace"
    subprocess.run(strace.command(command, trace), check=True, timeout=100)
    return strace.parse(trace, [str(root)], start=start, cwd=str(Path.cwd()))


@traced
@pytest.mark.parametrize("name", ["shutil_copies", "copy_ranges", "threads", "large"])
def test_the_trace_of_a_writer_replays_to_its_folder(bench, tmp_path, name):
    writers = Path(__file__).with_name("writers.py")
    command = [str(INTERPRETER), str(writers), name, str(bench.root)]
    history = History(record(bench.root, command, tmp_path))
    assert history.log.last > 2
    last = build(history, StateToken(letter="K", number=history.log.last + 1))
    assert expected(history, last) == observed(bench.root)


@traced
def test_both_recorders_see_the_same_ops(bench, tmp_path, protocols):
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import protocols\n"
        f"from pathlib import Path; protocols.numbered(Path({str(bench.root)!r}))"
    )
    command = [str(INTERPRETER), "-c", code]
    text = record(bench.root, command, tmp_path)
    bench.clear()
    _, history = bench.record(command)

    def shape(ops):
        return [
            (op.kind, op.path, op.to, op.offset, op.length) for op in ops if op.number
        ]

    assert shape(text.ops) == shape(history.log.ops)


def test_calls_in_two_parts_relative_names_and_forks_are_followed(tmp_path):
    def h(text):
        return "".join(f"\\x{byte:02x}" for byte in text.encode())

    root = tmp_path / "root"
    lines = [
        f'7 1.0 chdir("{h(str(root))}") = 0',
        "7 1.1 clone(child_stack=NULL, flags=SIGCHLD <unfinished ...>",
        (
            f'8 1.2 openat(AT_FDCWD<{h(str(root))}>, "{h("a")}", O_WRONLY|O_CREAT, 0666)'
            f" = 3<{h(str(root / 'a'))}>"
        ),
        "7 1.3 <... clone resumed>) = 8",
        f'8 1.4 write(3<{h(str(root / "a"))}>, "{h("one")}" <unfinished ...>',
        f'7 1.5 mkdir("{h("d")}", 0777) = 0',
        "8 1.6 <... write resumed>, 3) = 3",
        f'8 1.7 write(3<{h(str(root / "a"))}>, "{h("two")}", 3) = -1 ENOSPC (No space)',
        f'7 1.8 rename("{h("a")}", "{h("d/b")}") = 0',
    ]
    (tmp_path / "trace").write_text("\n".join(lines) + "\n")
    log = strace.parse(tmp_path / "trace", [str(root)], start=(), cwd="/")
    assert [(op.kind, op.path, op.to) for op in log.ops] == [
        ("creat", "a", None), ("mkdir", "d", None), ("write", "a", None),
        ("rename", "a", "d/b"),
    ]  # fmt: skip
    history = History(log)
    last = expected(history, build(history, StateToken.parse("K@5")))
    assert last == {"d": ("dir", None), "d/b": ("file", b"one")}


def test_a_write_that_strace_has_cut_short_is_an_error(tmp_path):
    (tmp_path / "trace").write_text(
        '7 1.0 creat("\\x61", 0666) = 3<\\x2f\\x72\\x2f\\x61>\n'
        '7 1.1 write(3<\\x2f\\x72\\x2f\\x61>, "\\x61"..., 9) = 9\n'
    )
    with pytest.raises(HarnessError, match="longer than strace shows"):
        strace.parse(tmp_path / "trace", ["/r"], start=(), cwd="/r")
