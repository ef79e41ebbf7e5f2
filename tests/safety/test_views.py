"""What the harness does to a view never reaches the user's own files through a link."""

import os
from types import SimpleNamespace

import pytest

from spotchaos.errors import HarnessError, UsageError
from spotchaos.injectors.disks import DiskFault, damage_at_rest
from spotchaos.injectors.file_times import TIMES, move_times
from spotchaos.launch.isolation.workspace import Workspace
from spotchaos.report.formats import check_writable
from tests.launch.conftest import mechanisms_named


@pytest.fixture
def mine(tmp_path):
    """A folder of the user's outside of the working folder."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "state.pt").write_bytes(bytes(8192))
    os.utime(folder / "state.pt", ns=(10**18, 10**18))
    return folder


@pytest.fixture
def view(tmp_path, mine, request):
    """A view of a working folder in which `linked` leads to the user's other folder."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "linked").symlink_to(mine)
    mechanisms = mechanisms_named(request.param)
    with Workspace(work, mechanisms=mechanisms) as workspace:
        yield workspace.view("a")


def seen(folder):
    status = (folder / "state.pt").stat()
    return (folder / "state.pt").read_bytes(), status.st_mtime_ns, os.listdir(folder)


def save_of(path):
    mark = SimpleNamespace(paths=(path,), begun_at_s=1.0, ended_at_s=2.0)
    rank = SimpleNamespace(saves=[mark])
    return SimpleNamespace(trace=SimpleNamespace(ranks={0: rank}), reclaimed_at_s=3.0)


@pytest.mark.parametrize("view", ["best", "user"], indirect=True)
def test_a_checkpoint_behind_a_link_is_hidden_and_not_removed(view, mine):
    before = seen(mine)
    view.hide(["linked/state.pt"])
    view.lose_machine()
    assert not view.is_overlay or view.host(mine / "state.pt").is_char_device()
    assert seen(mine) == before


@pytest.mark.parametrize("view", ["copy", "none"], indirect=True)
def test_what_a_copy_cannot_hide_is_refused_and_not_removed(view, mine):
    before = seen(mine)
    for path in ("linked/state.pt", str(mine / "state.pt")):
        with pytest.raises(HarnessError, match="cannot be hidden"):
            view.hide([path])
    view.hide([str(mine / "never.pt")])
    assert seen(mine) == before


@pytest.mark.parametrize("view", ["best", "copy"], indirect=True)
@pytest.mark.parametrize("fault", ["bit-flip", "zero-page"])
@pytest.mark.parametrize("saved", ["here", "here/state.pt", "file"])
def test_damage_to_a_checkpoint_stops_at_links_of_the_program(view, mine, fault, saved):
    before = seen(mine)
    place = view.fill_at("")
    (place / "here").symlink_to(mine)
    (place / "file").symlink_to(mine / "state.pt")
    injected = damage_at_rest(DiskFault.parse(fault), view, save_of(saved), patterns=())
    assert injected.times == 0
    assert seen(mine) == before
    (place / "own.pt").write_bytes(bytes(8192))
    (place / "newest").symlink_to("own.pt")
    injected = damage_at_rest(
        DiskFault.parse(fault), view, save_of("newest"), patterns=()
    )
    assert injected.times == 1
    assert (place / "own.pt").read_bytes() != bytes(8192) or fault == "zero-page"


@pytest.mark.parametrize("view", ["best", "copy"], indirect=True)
@pytest.mark.parametrize("fault", TIMES)
def test_times_are_moved_of_the_view_alone(view, mine, fault):
    before = seen(mine)
    out = view.fill_at("{out}/")
    out.rmdir()
    out.symlink_to(mine)  # as by `ln -s` to a larger disk
    (view.fill_at("") / "file").symlink_to(mine / "state.pt")
    move_times(fault, view)
    assert seen(mine) == before


@pytest.mark.parametrize("view", ["best"], indirect=True)
def test_nothing_is_hidden_through_a_link_that_the_program_made(view, mine):
    before = seen(mine)
    place = view.fill_at("")
    view.hide(["runs/state.pt"])
    (place / "runs").rmdir()
    (place / "runs").symlink_to(mine)
    with pytest.raises(HarnessError, match="leads from"):
        view.lose_machine()
    assert seen(mine) == before


def test_trying_a_report_removes_no_link(tmp_path):
    (tmp_path / "report.json").symlink_to(tmp_path / "elsewhere")
    check_writable(tmp_path / "report.json")
    assert (tmp_path / "report.json").is_symlink()
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "elsewhere").write_text("mine")
    check_writable(tmp_path / "report.json")
    assert (tmp_path / "elsewhere").read_text() == "mine"
    with pytest.raises(UsageError):
        check_writable(tmp_path)
