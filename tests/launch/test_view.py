"""What a view shows, keeps and forgets, at unchanged paths."""

import os
import sys
from pathlib import Path

import pytest

from spotchaos.errors import HarnessError, UsageError
from spotchaos.launch.attempt.attempt import Exited
from spotchaos.launch.isolation import (
    copying,
    rename_safety,
    view as view_module,
    workspace as workspace_module,
)
from spotchaos.launch.isolation.workspace import Workspace
from tests.launch.conftest import BOUND_S

everywhere = pytest.mark.parametrize(
    "mechanisms", ["best", "user", "copy", "none"], indirect=True
)
overlays = pytest.mark.parametrize("mechanisms", ["best", "user"], indirect=True)


@everywhere
def test_what_an_attempt_wrote_is_there_for_the_next(run, view):
    run("open('ckpt', 'w').write('one')")
    run("assert open('ckpt').read() == 'one'", number=2)


@everywhere
def test_views_do_not_see_each_other(run, workspace):
    run("open('ckpt', 'w').write('one')", view=workspace.view("one"))
    run("import os; assert os.listdir() == []", view=workspace.view("two"))


@everywhere
def test_changed_files_are_named_with_their_size(folder, run, request):
    (folder / "old").write_text("old")
    (folder / "kept").mkdir()
    (folder / "kept" / "data").write_text("d")
    view = request.getfixturevalue("view")
    assert view.changed() == []
    run(
        """
        import os
        os.mkdir("runs")
        open("runs/ckpt", "w").write("12345")
        open("old", "a").write("er")
        """
    )
    assert [(c.path, c.size) for c in view.changed()] == [("old", 5), ("runs/ckpt", 5)]
    assert view.path("runs/ckpt").read_text() == "12345"
    assert view.path("kept/data").read_text() == "d"


@everywhere
def test_a_growing_file_changes_what_is_changed(start, view):
    attempt = start(
        """
        import time
        with open("log", "w", buffering=1) as file:
            for n in range(100000):
                print(n, file=file)
                time.sleep(0.001)
        """
    )
    seen = set()
    while len(seen) < 3:
        seen.add(tuple(view.changed()))
        assert attempt.wait(0.01) is None, attempt.output_tail


@everywhere
def test_the_folder_for_output_is_filled_in(run, view, folder):
    command = (sys.executable, "-I", "-c")
    source = "import sys; open(sys.argv[1] + '/ckpt', 'w').write('x')"
    run("", command=(*command, source, "{out}"))
    assert [c.path for c in view.changed()] == ["{out}/ckpt"]
    assert view.path("{out}/ckpt").read_text() == "x"
    assert list(folder.iterdir()) == []


@everywhere
def test_hidden_checkpoints_are_absent_and_can_be_written_anew(folder, run, request):
    (folder / "runs" / "checkpoint-5").mkdir(parents=True)
    (folder / "runs" / "checkpoint-5" / "model.pt").write_text("old")
    (folder / "last.pt").write_text("old")
    (folder / "train.py").write_text("code")
    view = request.getfixturevalue("view")
    view.hide(["runs/checkpoint-5", "last.pt", "never.pt"])
    run(
        """
        import os
        assert sorted(os.listdir()) == ["runs", "train.py"], os.listdir()
        assert os.listdir("runs") == []
        os.makedirs("runs/checkpoint-5")
        open("last.pt", "x").write("new")
        """
    )
    run("import os; assert os.listdir('runs/checkpoint-5') == []", number=2)
    assert (folder / "last.pt").read_text() == "old"
    assert "last.pt" in [c.path for c in view.changed()]


@everywhere
def test_a_copy_of_a_view_goes_its_own_way(folder, run, request):
    (folder / "mine").write_text("m")
    view = request.getfixturevalue("view")
    run("import os; open('ckpt', 'w').write('one'); os.remove('mine')")
    copy = view.copy("copy")
    run(
        """
        import os
        assert os.listdir() == ["ckpt"]
        assert open("ckpt").read() == "one"
        open("ckpt", "w").write("two")
        """,
        view=copy,
        number=2,
    )
    run("assert open('ckpt').read() == 'one'", number=2)
    assert copy.path("ckpt").read_text() == "two"


@overlays
def test_a_folder_of_the_user_can_be_renamed(folder, run):
    (folder / "ckpt" / "inner").mkdir(parents=True)
    (folder / "ckpt" / "inner" / "a").write_text("old")
    run(
        """
        import os
        os.rename("ckpt", "ckpt.old")
        os.rename("ckpt.old/inner", "inner")
        os.mkdir("ckpt")
        assert open("inner/a").read() == "old"
        """
    )
    run("assert open('inner/a').read() == 'old'", number=2)
    assert (folder / "ckpt" / "inner" / "a").read_text() == "old"


@overlays
def test_a_file_can_be_renamed_from_tmpdir_into_the_folder(run):
    run(
        """
        import os, tempfile
        descriptor, path = tempfile.mkstemp()
        os.rename(path, "ckpt")
        os.mkdir(os.environ["TMPDIR"] + "/d")
        os.rename(os.environ["TMPDIR"] + "/d", "d")
        """
    )


@everywhere
def test_tmpdir_can_lie_on_another_file_system(run, mechanisms):
    if not mechanisms.mount_namespace:
        pytest.skip("without mounts TMPDIR lies where it lies")
    run(
        """
        import errno, os, tempfile
        descriptor, path = tempfile.mkstemp()
        try:
            os.rename(path, "ckpt")
        except OSError as error:
            assert error.errno == errno.EXDEV
        else:
            raise SystemExit("renamed")
        """,
        tmp_elsewhere=True,
    )


@overlays
def test_hard_links_of_the_user_stay_links(folder, run):
    (folder / "runs").mkdir()
    (folder / "runs" / "epoch-5").write_text("old")
    os.link(folder / "runs" / "epoch-5", folder / "last")
    run(
        """
        import os
        assert os.path.samefile("last", "runs/epoch-5")
        open("last", "w").write("new")
        assert open("runs/epoch-5").read() == "new"
        os.link("last", "another")
        """
    )
    assert (folder / "last").read_text() == "old"


def test_a_folder_too_large_to_copy_is_named(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(rename_safety, "LIMIT_BYTES", 10)
    (folder / "large").mkdir()
    (folder / "large" / "a").write_text("x" * 11)
    (folder / "small").mkdir()
    (tmp_path / "upper").mkdir()
    left = rename_safety.make_renamable(folder, tmp_path / "upper", redirects=False)
    assert left == ("large",)
    assert [p.name for p in (tmp_path / "upper").iterdir()] == ["small"]


@pytest.mark.parametrize("mechanisms", ["copy"], indirect=True)
def test_a_folder_too_large_to_copy_is_one_clear_sentence(
    folder, workspace, monkeypatch
):
    monkeypatch.setattr(view_module, "COPY_LIMIT_BYTES", 10)
    monkeypatch.setattr(copying, "FICLONE", 0)
    (folder / "large").write_text("x" * 11)
    with pytest.raises(HarnessError, match="private copy of the working folder") as why:
        workspace.view("trial")
    assert "smaller folder" in why.value.hint


@overlays
def test_losing_the_machine_leaves_the_working_folder(folder, run, request):
    (folder / "mine").write_text("m")
    view = request.getfixturevalue("view")
    view.hide(["mine"])
    name = f"spotchaos-test-{os.getpid()}"
    write = f"""
        import os, socket
        for place in (".", os.environ["TMPDIR"], "/var/tmp", "/dev/shm", "/tmp"):
            path = place + "/{name}"
            assert not os.path.exists(path), path
            open(path, "w").write("x")
        print(socket.gethostname(), os.environ["TMPDIR"], os.environ["SLURM_JOB_ID"])
        """
    base = {**os.environ, "SLURM_JOB_ID": "7"}
    first = run(write, base_environment=base)
    view.lose_machine()
    second = run(
        f"""
        import os
        assert os.listdir() == ["{name}"]
        os.remove("{name}")
        """
        + write,
        number=2,
        base_environment=base,
    )
    for before, after in zip(
        first.output_tail.split(), second.output_tail.split(), strict=True
    ):
        assert before != after


@overlays
def test_the_new_host_name_is_found(run, view):
    view.lose_machine()
    run(
        """
        import socket
        assert socket.gethostbyname(socket.gethostname()) == "127.0.0.1"
        """
    )


@overlays
def test_only_what_is_durable_outlives_the_machine(run, view):
    run(
        """
        import os
        os.makedirs("ckpt/a")
        open("ckpt/a/b", "w").write("x")
        open("log", "w").write("x")
        """
    )
    view.lose_machine([Path("ckpt")])
    run(
        "import os; assert os.listdir() == ['ckpt']; open('ckpt/a/b').close()", number=2
    )
    assert [c.path for c in view.changed()] == ["ckpt/a/b"]


@overlays
def test_what_is_put_out_outlives_the_machine(run, view):
    command = (sys.executable, "-I", "-c")
    run(
        "",
        command=(
            *command,
            "import sys; open(sys.argv[1] + '/a', 'w').close()",
            "{out}",
        ),
    )
    view.lose_machine()
    assert [c.path for c in view.changed()] == ["{out}/a"]


@overlays
def test_a_moved_folder_is_found_at_its_new_path_only(folder, run, request):
    (folder / "train.py").write_text("import os; print(os.getcwd(), os.listdir())")
    view = request.getfixturevalue("view")
    run("open('ckpt', 'w').write('one')")
    view.lose_machine(move=True)
    assert view.folder != folder
    command = (sys.executable, "-I", str(folder / "train.py"))
    done = run("", command=command, number=2)
    assert done.output_tail.startswith(str(view.folder))
    assert "ckpt" in done.output_tail
    run(f"import os; assert os.listdir({str(folder)!r}) == []", number=3)
    run("open('ckpt', 'a').write('two')", number=4)
    assert view.path("ckpt").read_text() == "onetwo"
    assert not view.folder.exists()


def test_a_name_can_be_used_again_once_closed(workspace):
    view = workspace.view("baseline")
    with pytest.raises(HarnessError, match="there is a view 'baseline' already"):
        workspace.view("baseline")
    view.close()
    assert not view.place.exists()
    workspace.view("baseline")


def test_a_folder_that_is_not_there_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="is not there"):
        Workspace(tmp_path / "nowhere")


def test_a_disk_without_space_is_one_clear_sentence(workspace, monkeypatch):
    monkeypatch.setattr(workspace_module, "LEAST_FREE_BYTES", 1 << 62)
    with pytest.raises(HarnessError, match="MB are left on the disk of") as why:
        workspace.view("trial")
    assert "TMPDIR" in why.value.hint


def test_a_scratch_folder_that_cannot_be_written_is_one_clear_sentence(folder):
    with pytest.raises(HarnessError, match="no place for private views") as why:
        Workspace(folder, Path("/proc"))
    assert "TMPDIR" in why.value.hint


@overlays
def test_attempts_of_two_views_run_side_by_side(workspace, start):
    one = start("input() if 0 else print(1)", view=workspace.view("one"))
    two = start("print(2)", view=workspace.view("two"))
    assert one.wait(BOUND_S) == Exited(0)
    assert two.wait(BOUND_S) == Exited(0)


def test_traces_are_kept_where_asked(folder, tmp_path, mechanisms, start):
    keep = tmp_path / "keep"
    with Workspace(folder, mechanisms=mechanisms, keep=keep) as workspace:
        attempt = start(
            "import json, os;"
            "t = json.load(open(os.environ['SPOTCHAOS_ORDERS']))['trace'];"
            "open(t + '/1-a.trace', 'w').write('{}'); print('said')",
            view=workspace.view("trial-1"),
        )
        assert attempt.wait(BOUND_S) == Exited(0), attempt.output_tail
        attempt.close()
    kept = keep / "trial-1" / "attempt-1"
    assert (kept / "1-a.trace").read_text() == "{}"
    assert (kept / "output").read_text() == "said\n"
