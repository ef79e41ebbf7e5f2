"""A machine that runs short is never a finding about the program: right, or one sentence."""

import errno
import os
import sys
from pathlib import Path

import pytest

from spotchaos.launch.isolation.shortages import as_shortage, shortage
from tests.safety.conftest import PROGRAM

pytestmark = pytest.mark.timeout(600)  # whole runs, on a machine that may be busy

SLOW = pytest.mark.slow
RUN = ("run", "--kill-at", "step-end:3", "--no-cache")
TRAIN = ("--", "python", "train.py", "{out}")
BIG = PROGRAM.replace(
    '"step": step + 1}', '"step": step + 1, "big": torch.ones(9 << 20)}'
)
# It goes on without, as careful programs do, and leaves nothing half written.
CAREFUL = BIG.replace(
    '    torch.save(state, f"{file}.new")\n    os.replace(f"{file}.new", file)\n',
    "    try:\n"
    '        torch.save(state, f"{file}.new")\n'
    '        os.replace(f"{file}.new", file)\n'
    "    except (OSError, RuntimeError) as error:\n"
    '        print("no save:", error)\n'
    '        Path(f"{file}.new").unlink(missing_ok=True)\n',
)
# Writes past Python's own messages; the text of the system's error is all there is.
PLAIN = (
    PROGRAM + "\nwith open(out / 'log', 'wb') as f:\n    f.write(bytes(120 << 20))\n"
)


def small_disk(machine, megabytes):
    """Let TMPDIR lie on a disk of this size."""
    machine.mount(f"mount -t tmpfs -o size={megabytes}m,mode=1777 none /var/tmp")


def told(machine, *words, **given):
    """Run and return status and output; there is never a traceback of ours."""
    status, said = machine.run(*words, **given)
    assert "Traceback" not in said, said
    assert machine.wait_until_nothing_is_left(5.0) == []
    return status, said


@pytest.mark.parametrize(
    "source", [CAREFUL, pytest.param(BIG, marks=SLOW), pytest.param(PLAIN, marks=SLOW)]
)
def test_a_disk_that_fills_meanwhile_is_our_trouble(machine, source):
    (machine.work / "train.py").write_text(source)
    small_disk(machine, 100)
    status, said = told(machine, *RUN, *TRAIN)
    assert status == 3, said
    assert "UNKNOWN" in said
    assert "baseline-failed" not in said
    assert "full" in said or "are left on the disk" in said
    assert "set TMPDIR to another disk" in " ".join(said.split())


def test_a_disk_that_is_full_from_the_start_is_our_trouble(machine):
    small_disk(machine, 8)
    status, said = told(machine, *RUN, "--json", "r.json", *TRAIN)
    assert status == 3, said
    assert "TMPDIR" in said
    assert (machine.work / "r.json").exists()


@SLOW
def test_small_shared_memory_is_enough(machine):
    loader = PROGRAM.replace(
        "start = 0\n",
        "big = torch.ones(6 << 20).share_memory_()\n"
        "more = [torch.ones(2 << 20).share_memory_() for _ in range(3)]\n"
        "start = 0\n",
    )
    (machine.work / "train.py").write_text(loader)
    machine.mount("mount -o remount,size=64m /dev/shm")
    status, said = told(machine, *RUN, *TRAIN)
    assert status == 0, said


@SLOW
def test_few_descriptors_are_enough_or_it_is_said(machine):
    command = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", sys.executable, "-m"]
    status, said = told(machine, command=[*command, "spotchaos", *RUN, *TRAIN])
    assert status == 0 or (status == 3 and "ulimit -n" in said), said


def test_a_working_folder_that_is_gone_is_said(machine):
    gone = machine.root / "gone"
    code = 'mkdir "$0" && cd "$0" && rmdir "$0" && exec "$@"'
    command = ["sh", "-c", code, str(gone), sys.executable, "-m", "spotchaos"]
    for words in ((*RUN, *TRAIN), ("explore", *TRAIN)):
        status, said = told(machine, command=[*command, *words])
        assert status == 2, said
        assert "the working folder is gone" in said
        assert "Hint:" in said


@SLOW
def test_a_very_long_working_folder_is_right_or_said(machine):
    code = f"""
import os, sys
for _ in range(19):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
open("train.py", "w").write({PROGRAM!r})
os.execv(sys.executable, [sys.executable, "-P", "-m", "spotchaos", *{[*RUN, *TRAIN]!r}])
"""
    status, said = told(machine, command=[sys.executable, "-c", code])
    assert status == 0 or (status in (2, 3) and "Hint:" in said), said


@SLOW
def test_a_long_tmpdir_is_right_or_said(machine):
    deep = machine.tmp.joinpath(*["d" * 100] * 12)
    deep.mkdir(parents=True)
    place = Path("/var/tmp").joinpath(*["d" * 100] * 12)
    status, said = machine.run(*RUN, *TRAIN, environment={"TMPDIR": str(place)})
    assert "Traceback" not in said
    assert status == 0 or (status == 3 and "Hint:" in said), said


def test_only_what_is_short_is_a_shortage(tmp_path):
    said = as_shortage(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/a"))
    assert "'/a'" in said.message
    assert "TMPDIR" in said.hint
    with pytest.raises(PermissionError):
        as_shortage(PermissionError(errno.EACCES, "no"))


def test_a_disk_that_a_fault_fills_is_the_programs_to_meet(tmp_path):
    words = "OSError: [Errno 28] No space left on device"
    assert shortage(tmp_path, tmp_path, words, is_injected=True) is None
    assert "was full" in shortage(tmp_path, tmp_path, words, is_injected=False)
    (tmp_path / f"1-ab.{errno.EMFILE}.lost").touch()
    assert "ulimit" in shortage(tmp_path, tmp_path, "", is_injected=True)
