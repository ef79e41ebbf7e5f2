"""The probe notes the program's line in the table from which the supervisor reads it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import spotchaos
from spotchaos.launch.supervisor import frames

BOOT = Path(spotchaos.__file__).parent / "probe" / "boot"


def run(folder, text, table, **variables):
    """Run a program under the probe; it prints its thread's id last."""
    program = folder / "train.py"
    program.write_text(text + "\nimport threading; print(threading.get_native_id())\n")
    orders = folder / "orders.json"
    told = {"frames": str(table), "folder": str(folder), "trace": str(folder / "trace")}
    orders.write_text(json.dumps(told))
    (folder / "trace").mkdir()
    environment = {
        **os.environ,
        **variables,
        "PYTHONPATH": str(BOOT),
        "SPOTCHAOS_ORDERS": str(orders),
    }
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "frames"
    frames.create(str(path))
    return path


@pytest.mark.parametrize(
    "call",
    [
        "open('a', 'w')",
        "os.mkdir('b')",
        "os.replace('train.py', 'train.old')",
        "shutil.copy('train.py', 'copy.py')",
        "pathlib.Path('c').write_text('x')",
    ],
)
def test_the_innermost_line_of_the_program_is_noted(tmp_path, table, call):
    text = f"import os, pathlib, shutil\ndef save():\n    {call}\n\nsave()"
    tid = run(tmp_path, text, table)
    assert frames.FrameTable(str(table)).where(tid) == "train.py:3"


def test_a_thread_of_a_library_works_for_the_line_that_started_it(tmp_path, table):
    text = (
        "import concurrent.futures as f, shutil, os\n"
        "with f.ThreadPoolExecutor(1) as pool:\n"
        "    os.mkdir('b'); done = pool.submit(shutil.copy, 'train.py', 'c')\n"
        "    tid = pool.submit(__import__('threading').get_native_id).result()\n"
        "from pathlib import Path\n"
        "(Path('tid')).write_text(str(tid))"
    )
    run(tmp_path, text, table)
    tid = int((tmp_path / "tid").read_text())
    assert frames.FrameTable(str(table)).where(tid) == "train.py:3"


def test_reading_is_not_noted(tmp_path, table):
    tid = run(tmp_path, "import os\nopen('train.py').close()", table)
    assert frames.FrameTable(str(table)).where(tid) is None


def test_a_missing_table_does_not_stop_the_program(tmp_path):
    run(tmp_path, "x = 1", tmp_path / "none")


def test_a_rank_is_noted_with_the_first_line(tmp_path, table):
    text = "import os\nos.mkdir('a')"
    pid = run(tmp_path, text, table, RANK="3", WORLD_SIZE="4")  # of its main thread
    assert frames.FrameTable(str(table)).rank(pid) == 3


def test_a_program_of_one_process_has_no_rank(tmp_path, table):
    pid = run(tmp_path, "import os\nos.mkdir('a')", table)
    assert frames.FrameTable(str(table)).rank(pid) is None
