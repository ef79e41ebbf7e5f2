"""The command in a folder of its own, as a person starts it, and what it leaves behind."""

import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

# A loaded machine makes campaigns many times slower, and nothing here is timed.
BOUND_S = 800.0

# Twelve steps with dropout; what it saves decides whether a resume is right.
TRAINER = """
import argparse, os, torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", default=".")
parser.add_argument("--forget-rng", action="store_true")
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
path = os.path.join(args.out, "last.pt")

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
data = torch.randn(12, 4, 8)
step = 0
if os.path.exists(path):
    saved = torch.load(path)
    net.load_state_dict(saved["net"])
    opt.load_state_dict(saved["opt"])
    step = saved["step"]
    if not args.forget_rng:
        torch.set_rng_state(saved["rng"])
while step < 12:
    loss = net(data[step]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    if step % 4 == 0:
        saved = {"net": net.state_dict(), "opt": opt.state_dict(), "step": step}
        saved["rng"] = torch.get_rng_state()
        torch.save(saved, path + ".tmp")
        os.replace(path + ".tmp", path)
"""


def until(condition, bound_s=BOUND_S):
    """Wait until `condition()` is true; fail after the bound."""
    pause = threading.Event()
    waited_s = 0.0
    while not condition():
        assert waited_s < bound_s, "waited in vain"
        pause.wait(0.05)
        waited_s += 0.05


def contents(folder):
    """Return what lies below a folder: name -> mode, time, size and digest."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        entry = [status.st_mode]
        if path.is_file():
            entry += [status.st_mtime_ns, status.st_size]
            if status.st_size < 1 << 24:
                entry.append(hashlib.sha256(path.read_bytes()).hexdigest())
        found[str(path.relative_to(folder))] = entry
    return found


@dataclass
class Place:
    """A user's folder, and beside it where reports go; both under one temporary folder."""

    folder: Path
    beside: Path
    mark: str

    TRAINER: ClassVar = TRAINER
    contents: ClassVar = staticmethod(contents)
    until: ClassVar = staticmethod(until)

    def write(self, source, name="train.py"):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return path

    @property
    def environment(self):
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "E2E_MARK": self.mark,
            "TMPDIR": str(self.beside / "tmp"),
        }

    def start(self, *args, before=(), **options):
        """Start the command; the caller waits for it."""
        command = [*before, sys.executable, "-m", "spotchaos", *args]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def spotchaos(self, *args, before=()):
        """Run the command to its end, and demand that it touched and left nothing."""
        prepare_baseline = contents(self.folder)
        process = self.start(*args, before=before)
        out, err = process.communicate(timeout=BOUND_S)
        assert contents(self.folder) == prepare_baseline
        assert self.alive() == []
        assert "Traceback" not in err
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def alive(self):
        """Return every process that our command started and that still lives."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if process.environ().get("E2E_MARK") == self.mark:
                    found.append(process.cmdline())
            except (psutil.Error, OSError):
                continue
        return found


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    # Not below pytest's own folders: TMPDIR holds sockets, whose names are bounded.
    with tempfile.TemporaryDirectory(prefix="e2e-") as beside:
        (Path(beside) / "tmp").mkdir()
        yield Place(folder, Path(beside), uuid.uuid4().hex)


@pytest.fixture
def trainer(place):
    """The place, with a correct trainer in it."""
    place.write(TRAINER)
    return place
