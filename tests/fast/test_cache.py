"""An entry of the cache holds while nothing that a run reads has changed."""

import dataclasses
import os
import pickle
import types

import pytest

from spotchaos.campaign import baseline_cache as cache
from spotchaos.config.settings import Settings


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text("step = 1\n")
    (folder / "data").mkdir()
    (folder / "data" / "rows.csv").write_text("1,2\n")
    packages = tmp_path / "env" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "torch.py").write_text("")
    (tmp_path / "elsewhere.py").write_text("")
    (tmp_path / "elsewhere.csv").write_text("")
    return tmp_path


def settings(place, **given):
    return Settings(command=("python", "train.py"), folder=place / "work", **given)


def rank_of(place):
    @dataclasses.dataclass
    class Load:
        path: str

    @dataclasses.dataclass
    class Rank:
        modules: tuple
        loads: tuple

    return Rank(
        modules=(
            ("torch", str(place / "env" / "site-packages" / "torch.py")),
            ("elsewhere", str(place / "elsewhere.py")),
            ("sys", ""),
        ),
        loads=(Load(str(place / "elsewhere.csv")), Load("data/rows.csv")),
    )


def stamps(place, **given):
    return cache._stamps(settings(place, **given), [rank_of(place)])


def test_nothing_changed_leaves_the_stamps_equal(place):
    assert stamps(place) == stamps(place)


@pytest.mark.parametrize(
    "path",
    [
        "work/train.py",
        "work/data/rows.csv",
        "elsewhere.py",
        "elsewhere.csv",
        "env/site-packages/torch.py",
    ],
)
def test_a_file_that_a_run_reads_invalidates(place, path):
    before = stamps(place)
    (place / path).write_text("something else\n")
    assert stamps(place) != before


def test_a_file_of_equal_size_and_other_time_invalidates(place):
    before = stamps(place)
    status = (place / "work" / "train.py").stat()
    later = (status.st_atime_ns, status.st_mtime_ns + 1)
    os.utime(place / "work" / "train.py", ns=later)
    assert stamps(place) != before


def test_a_new_file_beside_the_program_invalidates(place):
    before = stamps(place)
    (place / "work" / "last.pt").write_text("")
    assert stamps(place) != before


def test_a_new_package_invalidates(place):
    before = stamps(place)
    folder = place / "env" / "site-packages"
    (folder / "other-1.0.dist-info").mkdir()
    later = folder.stat().st_mtime_ns + 1_000_000
    os.utime(folder, ns=(later, later))
    assert stamps(place) != before


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"resume_cmd": ("python", "{place}/resume.py")}, "resume.py"),
        ({"resume_cmd": ("python", "../tools/again.py")}, "tools/again.py"),
        ({"command": ("{place}/bin/python", "train.py")}, "bin/python3"),
    ],
    ids=["another command's script", "by a path from the folder", "the interpreter"],
)
def test_what_a_command_names_in_other_folders_invalidates(place, given, path):
    for folder in ("tools", "bin"):
        (place / folder).mkdir()
    for name in ("resume.py", "tools/again.py", "bin/python3"):
        (place / name).write_text("")
        (place / name).chmod(0o755)
    (place / "bin" / "python").symlink_to("python3")
    given = {
        name: tuple(word.replace("{place}", str(place)) for word in words)
        for name, words in given.items()
    }
    values = {"command": ("python", "train.py"), **given}
    asked = Settings(folder=place / "work", **values)
    before = cache._stamps(asked, [rank_of(place)])
    (place / path).write_text("something else\n")
    assert cache._stamps(asked, [rank_of(place)]) != before


def test_what_only_the_resume_imported_or_read_invalidates(place):
    def attempt(*modules):
        rank = dataclasses.replace(rank_of(place), modules=modules)
        return types.SimpleNamespace(trace=types.SimpleNamespace(ranks={0: rank}))

    again = place / "again.py"
    again.write_text("")
    baseline = types.SimpleNamespace(
        first=attempt(),
        control=types.SimpleNamespace(attempts=(attempt(), attempt(("a", str(again))))),
    )
    before = cache._stamps(settings(place), cache._all_ranks(baseline))
    again.write_text("something else\n")
    assert cache._stamps(settings(place), cache._all_ranks(baseline)) != before


def test_a_user_without_a_home_has_no_cache(place, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)

    def getpwuid(uid):
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", getpwuid)
    assert cache.folder() is None
    assert not cache.may_keep(settings(place))


def test_compiled_files_change_nothing(place):
    before = stamps(place)
    (place / "work" / "__pycache__").mkdir()
    (place / "work" / "__pycache__" / "train.pyc").write_text("")
    assert stamps(place) == before


def test_a_folder_of_very_many_files_is_not_kept(place, monkeypatch):
    monkeypatch.setattr(cache, "MOST_ENTRIES", 1)
    assert stamps(place) is None


@pytest.mark.parametrize(
    "given",
    [
        {"threads": 2},
        {"seed_program": 3},
        {"deterministic": True},
        {"ranks": 2},
        {"fingerprint": "saves"},
        {"keep_existing": True},
        {"environment": {"A": "1"}},
        {"resume_cmd": ("python", "resume.py")},
        {"warm": False},
    ],
    ids=lambda given: next(iter(given)),
)
def test_settings_of_runs_have_entries_of_their_own(place, given):
    assert cache._path(settings(place, **given)) != cache._path(settings(place))


@pytest.mark.parametrize(
    "given",
    [{"trials": 9}, {"seed": 4}, {"promise": "state"}, {"jobs": 2}, {"no_skip": True}],
    ids=lambda given: next(iter(given)),
)
def test_settings_of_trials_share_an_entry(place, given):
    assert cache._path(settings(place, **given)) == cache._path(settings(place))


def test_the_environment_counts_but_for_what_shells_make_of_it(place, monkeypatch):
    before = cache._path(settings(place))
    monkeypatch.setenv("OLDPWD", "/somewhere")
    assert cache._path(settings(place)) == before
    monkeypatch.setenv("BATCH_SIZE", "8")
    assert cache._path(settings(place)) != before


def entry():
    return cache.Entry(frozenset(), {}, {"notes": ()}, ())


def test_an_entry_is_read_as_it_was_written(place):
    path = cache._path(settings(place))
    cache._write(path, cache.packed(entry()))
    assert cache._read(path) == entry()
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", [b"", b"damaged", pickle.dumps([1])])
def test_a_damaged_entry_is_none(place, content):
    path = cache._path(settings(place))
    cache._write(path, content)
    assert cache._read(path) is None


@pytest.mark.parametrize("what", ["file", "folder"])
def test_an_entry_that_others_may_write_is_none(place, what):
    path = cache._path(settings(place))
    cache._write(path, cache.packed(entry()))
    (path if what == "file" else path.parent).chmod(0o777)
    assert cache._read(path) is None


def test_only_the_newest_entries_are_kept(place, monkeypatch):
    monkeypatch.setattr(cache, "MOST_KEPT", 2)
    for number in range(4):
        path = cache.folder() / f"{number}.pickle"
        cache._write(path, cache.packed(entry()))
        os.utime(path, (number, number))
    assert sorted(p.name for p in cache.folder().iterdir()) == ["2.pickle", "3.pickle"]


@pytest.mark.parametrize("given", [{"no_cache": True}, {"allow_network": True}])
def test_nothing_is_kept_of_runs_that_say_nothing_of_others(place, given):
    assert cache.may_keep(settings(place))
    assert not cache.may_keep(settings(place, **given))
