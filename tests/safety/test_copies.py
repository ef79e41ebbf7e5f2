"""Copies of folders, and programs that run in one: their files are where they belong."""

import os
import sys

import pytest

from spotchaos.errors import HarnessError
from spotchaos.explore.recorder import _demand_no_path_of
from spotchaos.launch.isolation.copying import copy_tree
from spotchaos.launch.isolation.layers import Layer
from spotchaos.launch.isolation.workspace import Workspace
from spotchaos.persistence.oplog import OpLog
from tests.launch.conftest import (  # noqa: F401 - fixtures
    folder,
    mechanisms,
    run,
    start,
    view,
    workspace,
)


def test_scratch_below_the_folder_is_no_part_of_its_copy(tmp_path):
    place = tmp_path / "work" / "tmp" / "spotchaos-x" / "view"
    place.mkdir(parents=True)
    (tmp_path / "work" / "a").write_text("a")
    (tmp_path / "work" / "tmp" / "b").write_text("b")
    assert copy_tree(tmp_path / "work", place / "copy") == []
    found = sorted(p.relative_to(place / "copy").as_posix() for p in place.rglob("*"))[
        1:
    ]
    assert found == ["a", "tmp", "tmp/b"]


@pytest.mark.parametrize("mechanisms", ["none"], indirect=True)
def test_a_script_named_by_its_whole_path_writes_beside_its_copy(run, folder):  # noqa: F811
    script = folder / "train.py"
    script.write_text("import os; open(os.path.dirname(__file__) + '/new', 'w')")
    run("", command=(sys.executable, "-I", str(script)))
    assert os.listdir(folder) == ["train.py"]


@pytest.mark.parametrize("mechanisms", ["none", "best"], indirect=True)
def test_no_state_is_restored_that_names_the_folder_of_another_run(view):  # noqa: F811
    log = OpLog(start=(), ops=(), blob=f"x{view.place}/copy/last.pt".encode())
    if view.workspace.mechanisms.mount_namespace:
        _demand_no_path_of(view, log)
    else:
        with pytest.raises(HarnessError, match="the path of its folder"):
            _demand_no_path_of(view, log)
    _demand_no_path_of(view, OpLog(start=(), ops=(), blob=b"last.pt"))


def test_what_is_mounted_within_the_folder_has_its_own_place_to_fill(tmp_path):
    place = tmp_path / "work"
    (place / "data").mkdir(parents=True)
    with Workspace(place) as own:
        if not own.layers:
            pytest.skip("no overlay here")
        inner = Layer(f"{place}/data", "overlay")
        own.layers = [*own.layers, inner]
        found = own.view("a").fill_places("")
    assert [within for within, _ in found] == ["", "data/"]
    assert found[0][1] != found[1][1]
