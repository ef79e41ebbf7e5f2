"""Copies of folders in which our own scratch lies."""

from spotchaos.launch.copying import copy_tree


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
