"""Which time each file has once its machine is gone, and what such a fault may not say."""

import os
from pathlib import Path

import pytest

from spotchaos.errors import UsageError
from spotchaos.injectors.disks import DiskFault
from spotchaos.injectors.file_times import SKEW_S, TIMES, move_times
from spotchaos.launch.isolation.view import Changed

# Three checkpoints, each a folder, saved a second after one another.
SAVED_S = {"ckpt/5/a": 100, "ckpt/5/b": 101, "ckpt/10/a": 110, "ckpt/15/a": 120}


class Written:
    """What a view tells of the files that attempts wrote."""

    def __init__(self, place):
        self.place = place
        for name, at_s in SAVED_S.items():
            file = place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(name)
            os.utime(file, (at_s, at_s))
        for name, at_s in (("ckpt/5", 101), ("ckpt/10", 110), ("ckpt/15", 120)):
            os.utime(place / name, (at_s, at_s))
        (place / "data.csv").write_text("the user's own")
        os.utime(place / "data.csv", (7, 7))

    def changed(self):
        times = {name: (self.place / name).stat().st_mtime_ns for name in SAVED_S}
        return [Changed(name, 1, ns) for name, ns in sorted(times.items())]

    def path(self, relative):
        return self.place / relative


def newest(place, key=os.path.getmtime):
    return Path(max(sorted(place.glob("ckpt/*"), key=str), key=key)).name


@pytest.fixture
def written(tmp_path):
    return Written(tmp_path)


def test_a_clock_that_was_wrong_moves_all_times_alike(written):
    assert move_times("clock-skew", written) == 4
    for name, at_s in SAVED_S.items():
        assert written.path(name).stat().st_mtime == at_s + SKEW_S
    assert written.path("ckpt/5").stat().st_mtime == 101 + SKEW_S
    assert newest(written.place) == "15"


def test_equal_times_tell_nobody_which_is_the_newest(written):
    assert move_times("equal-times", written) == 4
    places = [written.path(name) for name in (*SAVED_S, "ckpt/5", "ckpt/10", "ckpt/15")]
    assert {place.stat().st_mtime for place in places} == {120}
    assert newest(written.place) == "10"  # the first of equals


def test_a_copy_leaves_the_oldest_as_the_newest(written):
    assert move_times("lost-times", written) == 4
    assert newest(written.place) == "5"
    files = sorted(SAVED_S, key=SAVED_S.get, reverse=True)
    copied = [written.path(name).stat().st_mtime_ns for name in files]
    assert copied == sorted(copied)
    assert len(set(copied)) == 4
    changed = [written.path(name).stat().st_ctime_ns for name in files]
    assert changed == sorted(changed)


@pytest.mark.parametrize("fault", TIMES)
def test_what_no_attempt_wrote_keeps_its_time(written, fault):
    move_times(fault, written)
    assert written.path("data.csv").stat().st_mtime == 7


@pytest.mark.parametrize("text", ["clock-skew:2", "equal-times:last", "lost-times:1+"])
def test_times_move_all_at_once(text):
    with pytest.raises(
        UsageError, match="moves the times of all files at once"
    ) as caught:
        DiskFault.parse(text)
    assert caught.value.hint == f"write --fault {text.partition(':')[0]}"
