"""Ordinary folders: an attempt runs in each of them as the program does without us."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.safety.conftest import BOUND_S, NOBODY, ROOT

# Each in mounts of its own. W is the working folder, of user U; P lies beside it.
PREPARE = """
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=0755 none "$P"
mkdir -p "$W/sub" "$P/tmp"
chmod 1777 "$P/tmp"
echo data > "$W/data.txt"; echo s > "$W/sub/s"
chown -R $U "$W"
"""
FOLDERS = {
    "plain": "",
    "a protected data set": 'mkdir "$W/set"; echo d > "$W/set/a"; chmod 444 "$W/set/a";'
    ' chmod 555 "$W/set"; chown -R $U "$W/set"',
    "a data set of somebody else": 'mkdir "$W/set"; echo d > "$W/set/a"',
    "lost+found": 'mkdir -m 700 "$W/lost+found"',
    "a folder that can be searched only": 'mkdir "$W/u"; echo x > "$W/u/f"; chmod 711 "$W/u"',
    "a folder without rights": 'mkdir -m 0 "$W/sub/u"; chown $U "$W/sub/u"',
    "a file that one may not read": 'echo x > "$W/secret"; chmod 600 "$W/secret";'
    ' cp -p "$W/secret" "$W/sub/secret"',
    "hard links": 'echo h > "$W/h1"; chown $U "$W/h1"; ln "$W/h1" "$W/h2";'
    ' ln "$W/h1" "$W/sub/h3"',
    "hard links of somebody else": 'echo h > "$W/h1"; chmod 600 "$W/h1"; ln "$W/h1" "$W/h2"',
    "device nodes": 'mknod -m 666 "$W/null" c 1 3; mknod "$W/sub/disk" b 7 0',
    "pipes": 'mkfifo "$W/pipe" "$W/sub/pipe"; chown $U "$W/pipe"',
    "sockets": 'python3 -c "import socket, sys; [socket.socket(1).bind(n) for n in'
    ' sys.argv[1:]]" "$W/s" "$W/sub/s1"',
    "a mount below it": 'mkdir "$W/data"; mount -t tmpfs none "$W/data";'
    ' echo m > "$W/data/m"; chown -R $U "$W/data"',
    "a read-only mount below it": 'mkdir "$W/data"; mount -t tmpfs none "$W/data";'
    ' echo m > "$W/data/m"; mount -o remount,ro "$W/data"',
    "a file mounted over another": 'echo c > "$W/conf"; echo o > "$P/o";'
    ' mount --bind "$P/o" "$W/conf"',
    "a mount where one may not look": 'mkdir -p "$W/r/priv/m"; chmod 700 "$W/r/priv";'
    ' mount -t tmpfs none "$W/r/priv/m"',
    "it is itself a mount": 'mount -t tmpfs none "$W"; mkdir "$W/sub"; echo data >'
    ' "$W/data.txt"; chown -R $U "$W"',
    "mounts below /tmp": "mount -t tmpfs none /tmp; chmod 1777 /tmp; mkdir /tmp/m;"
    " mount -t tmpfs none /tmp/m; mkfifo /tmp/pipe; echo x > /tmp/x; chmod 0 /tmp/x",
    "an entry of /tmp that goes meanwhile": "mount -t tmpfs none /tmp; chmod 777 /tmp;"
    " mkdir /tmp/m /tmp/gone; mount -t tmpfs none /tmp/m; chown $U /tmp/gone;"
    " export DOOMED=/tmp/gone",
    "links that lead nowhere": 'ln -s nowhere "$W/dangling"; ln -s loop "$W/loop";'
    ' ln -s ../sub "$W/sub/up"; ln -s /root/none "$W/sub/dangling"',
}
QUICK = ("a protected data set", "a file that one may not read", "a mount below it")
# What a copy made by a normal user does not have: such a node is nobody's to make.
LEFT_OUT = {
    "device nodes": {"null": None, "sub": "ds"},
    "sockets": {"s": None, "sub": "ds"},
}


@pytest.mark.parametrize("user", [0, NOBODY], ids=["root", "user"])
@pytest.mark.parametrize(
    "kind",
    [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in FOLDERS],
)
def test_a_program_runs_in_it_as_it_does_without_us(kind, user, interpreter, tmp_path):
    plain = run_in(kind, user, interpreter, tmp_path, "without-us")
    names = ["best", "user", "copy", "none"] if user == 0 else ["best", "copy", "none"]
    for name in names:
        found = run_in(kind, user, interpreter, tmp_path, name)
        expected = dict(plain)
        if name in ("copy", "none") and (user or kind == "sockets"):
            expected |= LEFT_OUT.get(kind, {})
        expected = {n: text for n, text in expected.items() if text is not None}
        assert [said[0] for said in found["said"]] == ["Exited(status=0)"] * 2, found
        first, second = (json.loads(said[1]) for said in found["said"])
        first.pop(".spotchaos", None)
        second.pop(".spotchaos", None)
        assert first == expected, name
        assert second == {**expected, "ckpt": "d1", "log.txt": "-1;"}, name
        for changed in ("changed", "kept", "copied"):
            assert found[changed] == ["ckpt/1", "ckpt/2", "log.txt"], (name, changed)


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("a file that one may not read", "copy", "secret"),
        ("device nodes", "copy", "null"),
    ],
)
def test_what_an_attempt_finds_otherwise_is_said(
    kind, name, said, interpreter, tmp_path
):
    limits = run_in(kind, NOBODY, interpreter, tmp_path, name)["limits"]
    assert len(limits) == 1
    assert "empty or absent in attempts" in limits[0]
    assert said in limits[0]
    assert run_in("plain", NOBODY, interpreter, tmp_path, name)["limits"] == []


def run_in(kind, user, interpreter, tmp_path, name):
    python, variables = interpreter
    script = f"{PREPARE}\n{FOLDERS[kind]}\ncd /\nexec setpriv --reuid $U --regid $U"
    script += f" --clear-groups {python} {ROOT}/tests/safety/in_a_folder.py $W {name}"
    # The way to it is everybody's; pytest's own folders are not.
    Path(f"/var/tmp/safety-{tmp_path.name}").mkdir()
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        env={
            **variables,
            "U": str(user),
            "P": f"/var/tmp/safety-{tmp_path.name}",
            "W": f"/var/tmp/safety-{tmp_path.name}/work",
            "TMPDIR": f"/var/tmp/safety-{tmp_path.name}/tmp",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=BOUND_S,
    )
    Path(f"/var/tmp/safety-{tmp_path.name}").rmdir()
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
