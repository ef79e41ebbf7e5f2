"""Real runs of the command in a machine of their own: private /tmp, /dev/shm and home."""

import contextlib
import copy
import os
import random
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spotchaos.launch.isolation.process_tree import GROUP_ROOTS
from spotchaos.launch.isolation.scratch import PREFIX

BOUND_S = 600.0

PROGRAM = """
import os, sys, torch
from pathlib import Path
out = Path(sys.argv[1]); out.mkdir(parents=True, exist_ok=True)
file = out / "state.pt"
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
start = 0
if file.exists():
    state = torch.load(file, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["step"]
for step in range(start, 6):
    model(torch.full((1, 2), step + 1.0)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    state = {"model": model.state_dict(), "step": step + 1}
    state["optimizer"] = optimizer.state_dict()
    torch.save(state, f"{file}.new")
    os.replace(f"{file}.new", file)
"""


HOLD = """
mount -t tmpfs -o mode=1777 none /dev/shm
mount --bind "$0" /var/tmp
echo up
exec cat
"""


class Machine:
    """Folders and mounts of its own: all places in which a run may leave something.

    Attributes:
        work: the working folder of its runs, with a small program that saves each step.
        tmp: their TMPDIR, which is /var/tmp to them.
    """

    def __init__(self, root):
        self.root = root
        self.tmp, self.home, self.work = root / "tmp", root / "home", root / "work"
        for folder in (self.tmp, self.home, self.work):
            folder.mkdir()
        self.tmp.chmod(0o1777)
        (self.work / "train.py").write_text(PROGRAM)
        self._seen, self._runs = set(), []
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-ec", HOLD, str(self.tmp)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        said = self._holder.stdout.readline()
        if said != "up\n":
            self.close()
            pytest.skip(f"no mount namespace can be had: {said}")
        inside = Path(f"/proc/{self._holder.pid}/root")
        self.shm = inside / "dev/shm"
        self.environment = {
            **os.environ,
            "TMPDIR": "/var/tmp",  # a short name
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }

    def close(self):
        """End all that still runs."""
        for run in self._runs:
            run.kill()
            run.wait()
            run.stdout.close()
        self._holder.stdin.close()
        self._holder.wait()
        self._holder.stdout.close()

    def mount(self, line):
        """Change mounts of the machine, by one line of shell."""
        enter = ["nsenter", f"--target={self._holder.pid}", "--mount"]
        subprocess.run([*enter, "sh", "-ec", line], check=True)

    def start(self, *words, environment=None, command=None, cwd=None):
        """Start `spotchaos` with these words, as a terminal would: in a session."""
        enter = ["nsenter", f"--target={self._holder.pid}", "--mount"]
        enter += [f"--wdns={cwd or self.work}"]
        run = subprocess.Popen(
            [*enter, *(command or [sys.executable, "-m", "spotchaos", *words])],
            env={**self.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._runs.append(run)
        return run

    def run(self, *words, **given):
        """Run `spotchaos` to its end; return its status and what it printed."""
        running = self.start(*words, **given)
        said, _ = running.communicate(timeout=BOUND_S)
        return running.returncode, said

    def left(self):
        """Return scratch and processes of runs that are still there."""
        found = [
            str(path) for place in (self.tmp, self.shm) for path in place.iterdir()
        ]
        found += [f"{pid}: {words}" for pid, words in self.processes()]
        return found + self.groups()

    def groups(self):
        """Return control groups of runs whose scratch was seen here (`see`)."""
        return [
            str(path)
            for root in GROUP_ROOTS
            for token in self._seen
            for path in root.glob(f"{token}-*")
        ]

    def see(self):
        """Remember which scratch there is: groups are named after it."""
        self._seen |= {path.name for path in self.tmp.glob(f"{PREFIX}*")}

    def processes(self):
        """Yield whoever is in our mounts, or was started with our variables."""
        own = os.readlink(f"/proc/{self._holder.pid}/ns/mnt")
        mark = f"HOME={self.home}".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self._holder.pid:
                continue
            with contextlib.suppress(OSError):
                is_in = os.readlink(entry / "ns/mnt") == own
                if is_in or mark in (entry / "environ").read_bytes().split(b"\0"):
                    said = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    if (entry / "stat").read_text().rpartition(")")[2].split()[
                        0
                    ] != "Z":
                        yield int(entry.name), said.decode(errors="replace")

    def wait_until_processes_are_gone(self, bound_s):
        """Return who still lives after at most `bound_s` seconds."""
        deadline_s = time.monotonic() + bound_s
        while (left := list(self.processes())) and time.monotonic() < deadline_s:
            select.select([], [], [], 0.05)
        return left

    def wait_until_nothing_is_left(self, bound_s):
        """Return what is still left after at most `bound_s` seconds."""
        deadline_s = time.monotonic() + bound_s
        while (left := self.left()) and time.monotonic() < deadline_s:
            select.select([], [], [], 0.05)
        return left


def lines_in(stream):
    """Return how many events a run has written so far."""
    return stream.read_bytes().count(b"\n") if stream.exists() else 0


def wait_for_events(run, stream, events):
    """Return once a run has written so many events, or has ended."""
    while run.poll() is None and lines_in(stream) < events:
        select.select([], [], [], 0.02)


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    yield made
    made.close()


# --- damaged files ---

HOSTILE = (
    b"\x00", b"\x1b[2J\x1b]0;x\x07", b"NaN", b"Infinity", b"1e999", b"9" * 5000, b"-1",
    b"null", b"true", b"[]", b"{}", b'""', b"[" * 2000, b'{"a":' * 500, b"\xff\xfe",
    b"\xe2\x80\xae", b'"\\ud800"', b"18446744073709551616", b"0.1", b'"@everyone #1"',
    b"'", b'"', b"]]", b"=", b"\n[", b"9e9", b"1979-05-27T07:32:00Z", b"[[x]]\n", b"inf",
)  # fmt: skip


@pytest.fixture
def damaged():
    """Return a function that damages bytes in one to three places, by a seed."""

    def damage(good, seed):
        rng = random.Random(seed)
        content = bytearray(good)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            at = rng.randrange(len(content) + 1)
            kind = rng.randrange(6)
            if kind == 0 and content:
                content[at % len(content)] ^= 1 << rng.randrange(8)
            elif kind == 1:
                del content[at:]
            elif kind == 2:
                content[at:at] = rng.choice(HOSTILE)
            elif kind == 3:
                del content[at : at + rng.randrange(1, 40)]
            elif kind == 4:
                content[at : at + rng.randrange(1, 20)] = rng.choice(HOSTILE)
            else:
                other = rng.randrange(len(content) + 1)
                content[at:at] = content[other : other + rng.randrange(1, 200)]
        return bytes(content)

    return damage


VALUES = (
    None, True, False, 0, -1, 2**62, 2**63, 10**40, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "x", "\x1b[2J\x00", "@user closes #12", "9" * 6000, "\ud800",
    [], {}, [None], [[]], {"": None}, [1, 2], ["x"], {"a": 1}, "x" * 100_000,
)  # fmt: skip


@pytest.fixture
def retyped():
    """Return a function that puts a value of any type at one place of a document."""

    def change(document, seed):
        rng = random.Random(seed)
        document = copy.deepcopy(document)
        for _ in range(rng.choice((1, 1, 2, 4))):
            node = document
            while True:
                keys = list(node) if isinstance(node, dict) else list(range(len(node)))
                if not keys:
                    break
                key = rng.choice(keys)
                inner = node[key]
                if isinstance(inner, dict | list) and inner and rng.random() < 0.85:
                    node = inner
                    continue
                what = rng.randrange(8)
                if what == 0:
                    del node[key]
                elif what == 1 and isinstance(node, dict):
                    node[rng.choice(("\x1b[2J", "x", "\ud800", "9" * 500))] = inner
                elif what == 2:
                    deep = value = []
                    for _ in range(rng.choice((5, 60, 900))):
                        value = [value]
                    node[key] = value if rng.random() < 0.5 else deep
                else:
                    node[key] = copy.deepcopy(rng.choice(VALUES))
                break
        return document

    return change


def pytest_generate_tests(metafunc):
    """Try 250 mutations of a kind with each run of the suite, and 5,000 in its own."""
    if "mutations" in metafunc.fixturenames:
        metafunc.parametrize(
            "mutations",
            [
                pytest.param(range(250), id="quick"),
                pytest.param(
                    range(5000),
                    id="all",
                    marks=[pytest.mark.slow, pytest.mark.timeout(1800)],
                ),
            ],
        )


# --- other users ---

ROOT = Path(__file__).parents[2]
NOBODY = 65534


@pytest.fixture(scope="session")
def interpreter():
    """Return a Python that another user may read, and the variables that it needs."""
    if os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("unshare"):
        pytest.skip("only root can prepare mounts and become somebody else")
    import msgspec

    packages = str(Path(msgspec.__file__).parents[1])
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT}:{packages}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/nonexistent",
    }
    check = (
        "import subprocess, sys, msgspec, spotchaos.launch;"
        "assert sys.version_info >= (3, 11);"
        "subprocess.run([sys.executable, '-c', ''], check=True)"
    )
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        done = subprocess.run(
            as_user(NOBODY, path, "-c", check),
            env=variables,
            cwd="/",
            capture_output=True,
            check=False,
        )
        if done.returncode == 0:
            return path, variables
    pytest.skip("no Python 3.11 with our packages that another user may read")


def as_user(user, *command):
    ids = ["--reuid", str(user), "--regid", str(user), "--clear-groups"]
    return ["setpriv", *ids, *command]
