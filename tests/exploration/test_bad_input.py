"""Programs that are hard to follow: clear sentences, counted, and never a false finding."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spotchaos.launch.supervisor.strace import strace_available

PROGRAM = Path(__file__).parent / "programs" / "hard.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture
def hard(explored):
    """Return a function that explores the program that saves in one way."""
    return lambda how, **options: explored(PROGRAM, how, **{"saves": 1, **options})


def held(document, least=5):
    told = document["coverage"]["crash_states"]
    assert document["classes"] == []
    assert document["verdict"] == "held", document["trouble"]
    assert told["held"] == told["distinct"] >= least
    return told


def test_a_listener_of_its_own_leaves_only_a_fall_back(hard):
    document = hard("listener")
    told = document["coverage"]["crash_states"]
    assert told["mechanism"] == ("strace" if strace_available()[0] else "python")
    assert any("does not show" in why for why in told["why_not_visited"])
    held(document)


def test_io_uring_is_refused_so_that_its_users_write_otherwise(hard):
    assert held(hard("io_uring"))["mechanism"] == "seccomp-notify"


def test_one_save_alone_is_explored(hard):
    held(hard("once"))


def test_a_database_that_nobody_sees_saving_is_cut_where_it_writes(hard):
    told = held(hard("database"), least=20)
    # Resumes that went on from it told when it was saved.
    assert not any("no save was seen" in why for why in told["why_not_visited"])


def test_records_that_are_appended_unseen_are_held(hard):
    told = held(hard("appended", saves=2), least=10)
    assert told["by_model"]["kill during a resume"]


def test_records_behind_a_torn_one_are_never_found_again(hard):
    document = hard("appended_after_rest", saves=2)
    [found] = document["classes"]
    assert found["finding"] == "stale-resume"
    assert found["during_resume"]


def test_random_temporary_names_are_one_recording(hard):
    held(hard("random_names"))


def test_threads_that_interleave_make_no_finding(hard):
    held(hard("threads"), least=20)


def test_thousands_of_small_writes_are_cut_at_some_and_the_rest_is_told(hard):
    told = held(hard("small_writes"))
    [why] = [one for one in told["why_not_visited"] if "crash points" in one]
    assert int(why.split()[0]) > 1000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_full_disk_under_our_store_is_no_finding(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    folder = tmp_path / "program"
    folder.mkdir()
    shutil.copy(PROGRAM, folder)
    # Enough for views, and not for the bytes of a recording.
    text = (folder / "hard.py").read_text()
    text = text.replace(
        '"step": step + 1}', '"step": step + 1, "x": torch.rand(9_000_000)}'
    )
    (folder / "hard.py").write_text(text)
    explore = f"{sys.executable} -m spotchaos explore --no-cache -- python hard.py once"
    command = f"mount -t tmpfs -o size=230m tmpfs {store} && {explore}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(store)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "set TMPDIR to another disk" in done.stdout + done.stderr
