"""Removing a tree changes nothing but the tree."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from spotchaos.launch.isolation.removal import DEEPEST, remove_tree


def modes(folder):
    """Return mode, owner and content of everything below, and of the folder."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
        found[str(path)] = status.st_mode, status.st_uid, status.st_gid, content
    return found


@pytest.fixture
def above(tmp_path):
    """A folder that others use as well, beside which the user has files."""
    above = tmp_path / "above"
    above.mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    above.chmod(0o1777)
    return above


def test_what_is_not_there_needs_nothing(above, tmp_path):
    before = modes(tmp_path)
    assert remove_tree(str(above / "missing"))
    assert remove_tree(str(above / "missing" / "too"))
    assert modes(tmp_path) == before


def test_folders_without_permissions_are_removed(above, tmp_path):
    before = modes(tmp_path)
    for name in ("a", "b"):
        inner = above / "tree" / name / "inner"
        inner.mkdir(parents=True)
        (inner / "file").touch()
        inner.chmod(0)
        inner.parent.chmod(0o500)
    assert remove_tree(str(above / "tree"))
    assert modes(tmp_path) == before


def test_links_are_removed_and_not_followed(above, tmp_path):
    before = modes(tmp_path)
    tree = above / "tree"
    tree.mkdir()
    (tree / "folder").symlink_to(tmp_path / "mine")
    (tree / "file").symlink_to(tmp_path / "mine" / "file")
    (tree / "up").symlink_to("..")
    (tree / "nowhere").symlink_to("/nowhere/at/all")
    os.mkfifo(tree / "fifo")
    assert remove_tree(str(tree))
    assert modes(tmp_path) == before


def test_a_link_in_the_place_of_the_tree_goes_alone(above, tmp_path):
    before = modes(tmp_path)
    (above / "tree").symlink_to(tmp_path / "mine")
    assert remove_tree(str(above / "tree"))
    assert modes(tmp_path) == before


def test_a_file_that_has_another_name_elsewhere_keeps_its_content_and_mode(
    above, tmp_path
):
    before = modes(tmp_path)
    (above / "tree").mkdir()
    (above / "tree" / "file").hardlink_to(tmp_path / "mine" / "file")
    assert remove_tree(str(above / "tree"))
    assert modes(tmp_path) == before


def test_no_tree_is_too_deep_and_no_descriptor_is_kept(above):
    depth = 3000
    place = os.open(above, os.O_RDONLY)
    for number in range(depth):
        os.mkdir("d" if number else "tree", dir_fd=place)
        inner = os.open("d" if number else "tree", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    before = len(os.listdir("/proc/self/fd"))
    assert remove_tree(str(above / "tree"))
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(above.iterdir()) == []


def test_a_deep_tree_of_folders_without_permissions_is_removed(above):
    place = above / "tree"
    for _ in range(3 * DEEPEST):
        place = place / "d"
    place.mkdir(parents=True)
    while place != above:
        place.chmod(0)
        place = place.parent
    assert as_nobody_if_root(above, "tree") is True
    assert list(above.iterdir()) == []


def test_where_the_parent_cannot_be_written_the_rest_goes_and_its_mode_stays(above):
    (above / "tree" / "inner").mkdir(parents=True)
    above.chmod(0o555)
    assert as_nobody_if_root(above, "tree") is False
    assert stat.S_IMODE(above.stat().st_mode) == 0o555
    assert [path.name for path in above.rglob("*")] == ["tree"]


def as_nobody_if_root(above, name):
    """Remove a tree as a user whom modes bind; return what that said."""
    code = f"""
import os, sys
if os.geteuid() == 0:
    os.chown({str(above)!r}, 65534, 65534)
    for folder, names, files in os.walk({str(above)!r}):
        for one in names + files:
            os.chown(os.path.join(folder, one), 65534, 65534)
os.chdir({str(above)!r})
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from spotchaos.launch.isolation.removal import remove_tree
import secrets
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(*[65534] * 3); os.setresuid(*[65534] * 3)
print(remove_tree({name!r}))
"""
    # By its name from where it lies: pytest's folders let nobody else through.
    said = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    return {"True": True, "False": False}[said.stdout.strip()]


MOUNTED = """
import os, sys
from spotchaos.launch.isolation import namespaces
from spotchaos.launch.isolation.removal import remove_tree
tree, mine = sys.argv[1:]
namespaces.unshare_rest(["mount"])
os.makedirs(f"{tree}/deep/bound")
os.makedirs(f"{tree}/tmpfs")
os.makedirs(f"{tree}/plain")
namespaces._bind(mine, f"{tree}/deep/bound", recursive=False)
namespaces._mount("tmpfs", f"{tree}/tmpfs", "tmpfs", 0)
open(f"{tree}/tmpfs/file", "w").close()
print(remove_tree(tree), os.path.exists(f"{mine}/file"), sorted(os.listdir(tree)),
      os.listdir(f"{tree}/tmpfs"))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount without more")
def test_what_is_mounted_below_stays(above, tmp_path):
    before = modes(tmp_path / "mine")
    said = subprocess.run(
        [sys.executable, "-c", MOUNTED, str(above / "tree"), str(tmp_path / "mine")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert said.stdout == "False True ['deep', 'tmpfs'] ['file']\n"
    assert modes(tmp_path / "mine") == before
