"""Pure parts: what is planned for mounts, what is hidden, what a bad command is told."""

import dataclasses
import sys
from pathlib import Path

import pytest

from spotchaos.errors import HarnessError, UsageError
from spotchaos.launch.attempt import output as output_module
from spotchaos.launch.attempt.output import bound, denied_paths, tail
from spotchaos.launch.isolation import (
    layers as layers_module,
    mechanisms as mechanisms_module,
)
from spotchaos.launch.isolation.credentials import (
    is_secret,
    secret_paths,
    without_secrets,
)
from spotchaos.launch.isolation.layers import (
    Layer,
    Mount,
    layer_of,
    plan_layers,
    read_mounts,
)
from spotchaos.launch.isolation.mechanisms import (
    Mechanisms,
    find_mechanisms,
    mechanisms_from,
)
from spotchaos.launch.isolation.program import Program, check_program, wants_terminal
from spotchaos.launch.isolation.workspace import Workspace

MOUNTINFO = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 27 0:50 / /mnt/with\\040space rw,relatime shared:1 - ext4 /dev/vdb rw
41 27 0:51 / /data rw,relatime - tmpfs tmpfs rw
42 27 0:52 / /data ro,relatime - ext4 /dev/vdc rw
"""


def test_mounts_are_read_with_spaces_and_the_topmost_last():
    mounts = {mount.at: mount for mount in read_mounts(MOUNTINFO)}
    assert mounts["/mnt/with space"].kind == "ext4"
    assert (mounts["/data"].kind, mounts["/data"].readonly) == ("ext4", True)


def test_root_gets_one_overlay_and_one_for_each_mount():
    mounts = [
        Mount("/", "ext4"),
        Mount("/proc", "proc"),
        Mount("/dev/shm", "tmpfs"),
        Mount("/home/data", "xfs"),
        Mount("/home", "nfs4"),
        Mount("/snap", "squashfs", readonly=True),
        Mount("/run/binfmt", "binfmt_misc"),
        Mount("/etc/hosts", "ext4", is_folder=False),
    ]
    assert plan_layers(mounts, whole_root=True) == [
        Layer("/", "overlay"),
        Layer("/home", "overlay"),
        Layer("/snap", "readonly"),
        Layer("/etc/hosts", "readonly"),
        Layer("/home/data", "overlay"),
        Layer("/run/binfmt", "readonly"),
    ]


def test_a_read_only_mount_is_overlaid_if_the_program_runs_there():
    mounts = [Mount("/", "ext4"), Mount("/snap", "squashfs", readonly=True)]
    planned = plan_layers(mounts, whole_root=True, folder="/snap/work")
    assert planned == [Layer("/", "overlay"), Layer("/snap", "overlay")]


def test_a_user_gets_an_overlay_for_each_folder_without_mounts_in_it(
    tmp_path, monkeypatch
):
    (tmp_path / "usr" / "lib").mkdir(parents=True)
    (tmp_path / "home" / "me").mkdir(parents=True)
    (tmp_path / "home" / "data").mkdir()
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "file").touch()
    top = str(tmp_path)
    monkeypatch.setattr(layers_module, "FRESH", ())
    monkeypatch.setattr(layers_module, "WINDOWS", ())
    covered = layers_module._cover(
        top,
        {f"{top}/home/data": Mount(f"{top}/home/data", "xfs")},
        (),
        f"{top}/home/me",
    )
    assert covered == [
        Layer(top, "frame", {"bin": "usr/bin"}, (), ("file",)),
        Layer(f"{top}/home", "frame", {}, ()),
        Layer(f"{top}/home/data", "overlay"),
        Layer(f"{top}/home/me", "overlay"),
        Layer(f"{top}/usr", "overlay"),
    ]
    assert layer_of(covered, f"{top}/home/me/x").at == f"{top}/home/me"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("AWS_ACCESS_KEY_ID", True),
        ("AWS_DEFAULT_REGION", False),
        ("GOOGLE_APPLICATION_CREDENTIALS", True),
        ("HF_TOKEN", True),
        ("MY_SERVICE_PASSWORD", True),
        ("WANDB_API_KEY", True),
        ("TOKENIZERS_PARALLELISM", False),
        ("MAX_TOKENS", False),
        ("PATH", False),
        ("CUDA_VISIBLE_DEVICES", False),
        ("SLURM_JOB_ID", False),
        ("PAD_TOKEN", False),
        ("EOS_TOKEN", False),
        ("AWS_BATCH_JOB_ID", False),
        ("AWS_EXECUTION_ENV", False),
        ("AWS_SESSION_TOKEN", True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_variables_that_give_access_are_told_from_others(name, secret):
    assert is_secret(name) is secret
    value = "x9-" * 8
    assert (name in without_secrets({name: value})) is not secret
    assert without_secrets({name: value}, keep=(name,)) == {name: value}
    assert without_secrets({name: value}, keep=(f"{name[:-1]}*",)) == {name: value}


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("MY_TOKEN", "k3j4h5k2j3h4k5", True),
        ("PAGER_TOKEN", "abcdefghijklmnopqrst", True),
        ("SEPARATOR_TOKEN", "<sep>", False),
        ("NEW_WORD_TOKEN", "eos", False),
        ("ID_OF_A_TOKEN", "50256", False),
        ("OPENAI_KEY", "0123456789abcdef0123", True),
        ("SORT_KEY", "date", False),
        ("HOST_KEY", "/etc/ssh/host", False),
        ("DATABASE_URL", "postgres://me:pass@db/x", True),
        ("DATABASE_URL", "postgres://db/x", False),
        ("HTTP_PROXY", "http://me:pass@proxy:3128", False),
        ("WHATEVER", "hf_" + "a1" * 17, True),
        ("WHATEVER", "-----BEGIN OPENSSH PRIVATE KEY-----\nx", True),
        ("RUN_NAME", "hf_transfer", False),
        ("LD_LIBRARY_PATH", "/usr/lib:/opt/x@1:/y", False),
    ],
)
def test_where_a_name_is_unclear_the_value_decides(name, value, secret):
    assert is_secret(name, value) is secret


def test_only_credentials_that_exist_are_hidden(tmp_path):
    (tmp_path / ".netrc").touch()
    (tmp_path / "key.json").touch()
    environment = {
        "HOME": str(tmp_path),
        "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "key.json"),
        "AWS_CONFIG_FILE": str(tmp_path / "nowhere"),
    }
    found = secret_paths(environment)
    assert found == [tmp_path / ".netrc", tmp_path / "key.json"]


@pytest.mark.parametrize(
    ("command", "message", "hint"),
    [
        pytest.param((), "the command is empty", "after `--`", id="none"),
        pytest.param(
            ("pythn-of-mine", "x"),
            "the command 'pythn-of-mine' does not exist",
            "did you mean 'python-of-mine'?",
            id="near-miss",
        ),
        pytest.param(
            ("RATE=1", "python"),
            "the command 'RATE=1' does not exist",
            "variables are set by env: `-- env RATE=1 ...`",
            id="variable",
        ),
        pytest.param(
            ("python train.py",),
            "the command 'python train.py' does not exist",
            "leave out the quotes",
            id="quoted",
        ),
        pytest.param(
            ("train.py",),
            "the command 'train.py' does not exist",
            "did you mean `python train.py`?",
            id="script",
        ),
        pytest.param(
            ("./train.py",),
            "the command './train.py' cannot be executed",
            "did you mean `python ./train.py`?",
            id="not-executable",
        ),
        pytest.param(
            ("bin/nothing-like-it",),
            "the command 'bin/nothing-like-it' does not exist",
            "give the path of a program",
            id="path",
        ),
        pytest.param(
            ("python-of-mine", "trian.py"),
            "the script 'trian.py' does not exist",
            "did you mean 'train.py'?",
            id="script-near-miss",
        ),
        pytest.param(
            ("bin/python-of-mine", "other/thing.py"),
            "the script 'other/thing.py' does not exist",
            "it is looked for in",
            id="script-path",
        ),
    ],
)
def test_a_command_that_cannot_be_started_is_a_usage_error(
    folder, command, message, hint
):
    (folder / "train.py").touch(mode=0o644)
    (folder / "bin").mkdir()
    (folder / "bin" / "python-of-mine").touch(mode=0o755)
    program = Program(command, folder, environment={"PATH": str(folder / "bin")})
    with pytest.raises(UsageError) as why:
        check_program(program)
    assert why.value.message == message
    assert hint in why.value.hint


def test_a_resume_command_is_checked_as_well(folder):
    program = Program((sys.executable,), folder, resume_command=("nowhere-at-all",))
    with pytest.raises(UsageError, match="the command to resume 'nowhere-at-all'"):
        check_program(program)


def test_a_folder_that_is_not_there_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="is not there"):
        check_program(Program((sys.executable,), tmp_path / "nowhere"))


def test_a_good_command_passes(folder):
    (folder / "train.py").touch()
    check_program(Program((sys.executable, "train.py"), folder))
    check_program(Program((sys.executable, "-m", "train.py"), folder))


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        ("OSError: [Errno 25] Inappropriate ioctl for device", True),
        ("stty: 'standard input': Inappropriate ioctl for device", True),
        ("ValueError: shapes do not match", False),
        ("loss of batch 25: 0.1", False),
    ],
    ids=["errno", "stty", "other", "number"],
)
def test_the_want_of_a_terminal_is_read_from_the_output(output, wanted):
    assert wants_terminal(output) is wanted


def test_the_tail_of_output_is_short(tmp_path):
    (tmp_path / "output").write_text("".join(f"{n}\r\n" for n in range(99)))
    assert tail(tmp_path / "output").splitlines()[0] == "39"
    assert tail(tmp_path / "nowhere") == ""


def test_output_that_grows_large_gives_the_disk_back(tmp_path, monkeypatch):
    monkeypatch.setattr(output_module, "LIMIT_BYTES", 1 << 20)
    path = tmp_path / "output"
    path.write_bytes(b"x" * (2 << 20) + b"\nlast\n")
    before = path.stat()
    bound(path)
    if path.stat().st_blocks == before.st_blocks:
        pytest.skip("the file system of temporary files punches no holes")
    assert path.stat().st_size == before.st_size
    assert path.stat().st_blocks * 512 <= 1 << 20
    assert tail(path).endswith("last")


def test_paths_that_were_denied_are_read_from_the_output():
    output = "OSError: [Errno 30] Read-only file system: '/data/ckpt.pt'\nbye"
    assert denied_paths(output) == ["/data/ckpt.pt"]


ALL = dict.fromkeys(
    [
        "user",
        "needs user",
        "mount",
        "ipc",
        "uts",
        "network",
        "pid",
        "proc",
        "whole root",
        "each folder",
    ]
)


def test_root_uses_no_user_namespace():
    found = mechanisms_from(ALL, control_group=None, is_root=True)
    assert found.overlay == "root"
    assert found.namespaces == ["mount", "pid", "network", "ipc", "uts"]
    assert found.unprotected() == []
    assert found.as_report()["files"].startswith("one overlay over the root")


def test_a_user_gets_overlays_in_a_user_namespace():
    tried = {**ALL, "needs user": "no", "whole root": "failed to clone"}
    found = mechanisms_from(tried, control_group=None, is_root=False)
    assert found.overlay == "user"
    assert found.namespaces[0] == "user"
    assert found.unprotected() == []


def test_processes_are_numbered_anew_only_with_a_proc_that_shows_it():
    tried = {**ALL, "needs user": "no", "proc": "masked"}
    found = mechanisms_from(tried, control_group=None, is_root=False)
    assert not found.pid_namespace
    assert "pid" not in found.namespaces
    assert "no /proc of its own: masked" in found.unprotected()[0]


def test_a_user_namespace_that_allows_nothing_is_not_used():
    tried = {**dict.fromkeys(ALL, "not permitted"), "user": None}
    found = mechanisms_from(tried, control_group=None, is_root=False)
    assert found.namespaces == []


def test_a_machine_without_namespaces_says_what_is_not_protected():
    tried = dict.fromkeys(ALL, "not permitted")
    found = mechanisms_from(tried, control_group=None, is_root=False)
    assert found.namespaces == []
    assert found.unprotected() == [
        "files outside the working folder are not protected: not permitted",
        "attempts reach the network: not permitted",
        (
            "a process that hides from its parents may outlive an attempt, and attempts see"
            " this user's processes, with the variables they hold: not permitted"
        ),
        "files that give access to accounts, as ~/.aws, are not hidden: not permitted",
    ]
    assert found.as_report()["network"] == "open (not permitted)"


def test_mechanisms_that_cannot_be_tried_are_one_clear_sentence(tmp_path):
    with pytest.raises(HarnessError, match="could not try what this machine") as why:
        find_mechanisms(tmp_path / "nowhere")
    assert "TMPDIR" in why.value.hint


def test_what_was_tried_once_is_remembered(monkeypatch):
    first = find_mechanisms()

    def refuse(folder):
        raise AssertionError("tried again")

    monkeypatch.setattr(mechanisms_module, "_try_all", refuse)
    assert find_mechanisms() is first


def test_a_write_that_isolation_refused_is_told_from_the_program_own(
    folder, mechanisms
):
    with Workspace(folder, mechanisms=mechanisms) as workspace:
        view = workspace.view("trial")
        assert view.is_refused(Path("/data/x"), also=["/data"])
        assert not view.is_refused(folder / "x")


def test_unknown_mechanisms_protect_nothing():
    assert len(Mechanisms().unprotected()) == 4
    assert dataclasses.replace(Mechanisms(), pid_namespace=True).namespaces == ["pid"]
