"""Faults of the disk where no supervisor can be had: struck in Python, and said so."""

import errno
import sys
from pathlib import Path

import pytest

import spotchaos
from spotchaos.campaign.campaign import run
from spotchaos.config.settings import Settings
from spotchaos.errors import HarnessError
from spotchaos.events import BaselineDone
from spotchaos.injectors.disks import DiskFault
from spotchaos.injectors.python_faults import injected_step_in_python, python_rule_of
from spotchaos.model import SaveMark, Verdict

SPECIMENS = Path(spotchaos.__file__).parent / "specimens"
HABITS = Path(__file__).with_name("habits.py")
SAVES = [
    SaveMark(
        n, step, (f"ckpt-{step}",), None, begun_at_s=100.0 + n, ended_at_s=101.0 + n
    )
    for n, step in ((1, 5), (2, 10), (3, 15))
]


def rule(text, **more):
    return python_rule_of(DiskFault.parse(text), SAVES, **more)


@pytest.mark.parametrize(
    ("text", "kind", "code", "step"),
    [
        pytest.param("enospc", "write", errno.ENOSPC, 5, id="first"),
        pytest.param("eio:2", "write", errno.EIO, 10, id="second"),
        pytest.param("erofs:last", "open", errno.EROFS, 15, id="last"),
        pytest.param("rename-refused:3+", "rename", errno.EPERM, 15, id="rename"),
        pytest.param("fsync-fails:9", "fsync", errno.EIO, 15, id="perhaps"),
    ],
)
def test_a_fault_in_python_counts_the_files_of_saves(text, kind, code, step):
    found = rule(text)
    assert (found.kind, found.errno) == (kind, code)
    assert injected_step_in_python(found, SAVES) == step
    assert injected_step_in_python(found, []) is None


def test_the_last_save_before_a_kill_point_is_meant():
    assert rule("enospc:last", before=12).from_save == 2
    assert rule("slow-disk").delay_s > 0


@pytest.mark.parametrize("text", ["eintr:2", "short-write"])
def test_what_python_hides_from_its_program_is_refused(text):
    with pytest.raises(HarnessError, match="Python writes on by itself"):
        rule(text)


@pytest.fixture
def unsupervised(tmp_path, monkeypatch):
    """Return a function that runs a program with a fault, where nothing supervises."""
    monkeypatch.setattr(
        "spotchaos.campaign.baseline.supervisor_available",
        lambda: (False, "EBUSY: taken"),
    )

    def unsupervised(program, fault, habits=""):
        (tmp_path / "train.py").write_text(Path(program).read_text())
        (tmp_path / "habits").write_text(habits)
        settings = Settings(
            command=(sys.executable, "train.py"),
            folder=tmp_path,
            fault=(fault,),
            jobs=1,
        )
        events = []
        outcome = run(settings, events.append)
        assert outcome.trouble is None, outcome.trouble
        (done,) = (event for event in events if isinstance(event, BaselineDone))
        told = [note for note in done.notes if note.name == "inside-save-left-out"]
        assert "faults strike where Python opens" in told[0].message
        ((trial, judgement),) = outcome.trials
        return trial.attempts[0].injected[0], judgement, outcome.verdict

    return unsupervised


SLOW = [pytest.mark.slow, pytest.mark.timeout(450)]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("enospc:2", marks=SLOW),
        pytest.param("eio:last", marks=SLOW),
        pytest.param("rename-refused:2", marks=SLOW),
        pytest.param("link-refused:2", marks=SLOW),
        pytest.param("chmod-refused:last", marks=SLOW),
        pytest.param("fsync-fails:3+", marks=SLOW),
        pytest.param("slow-disk:2+", marks=SLOW),
    ],
)
def test_errors_in_python_are_survived(unsupervised, fault):
    injected, judgement, verdict = unsupervised(HABITS, fault)
    assert injected.times
    assert injected.path.startswith("checkpoints/")
    assert [f.name for f in judgement.findings] == []
    assert verdict is Verdict.HELD


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_an_error_in_python_convicts_who_loses_the_old_checkpoint(unsupervised):
    injected, judgement, _ = unsupervised(HABITS, "rename-refused:3", "deletes-first")
    assert injected.times
    assert [f.name for f in judgement.findings] == ["error-destroyed-checkpoint"]


@pytest.mark.slow
@pytest.mark.timeout(450)
@pytest.mark.parametrize("is_mended", [False, True])
def test_torch_that_opens_by_itself_is_struck_as_well(unsupervised, is_mended):
    folder = SPECIMENS / ("mended" if is_mended else "mutants")
    program = folder / "error_destroyed_checkpoint.py"
    injected, judgement, verdict = unsupervised(program, "enospc:3")
    assert injected.times == 1
    if is_mended:
        assert verdict is Verdict.HELD
    else:
        assert [f.name for f in judgement.findings] == ["error-destroyed-checkpoint"]
