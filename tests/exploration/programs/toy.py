"""A toy of 12 steps and 4 saves, which saves in the way that its argument names."""

import os
import random
import shutil
import sys
from pathlib import Path

import torch

HOW = sys.argv[1]
OUT = Path("out")
LAST = OUT / "last.pt"


def in_place(state, step):
    torch.save(state, LAST)


def replaced(state, step):
    torch.save(state, OUT / "last.tmp")
    os.replace(OUT / "last.tmp", LAST)


def numbered(state, step):
    torch.save(state, OUT / "new.tmp")
    os.replace(OUT / "new.tmp", OUT / f"step_{step:03d}.pt")
    for old in sorted(OUT.glob("step_*.pt"))[:-2]:
        old.unlink()


def durable(state, step):
    with (OUT / "last.tmp").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(OUT / "last.tmp", LAST)
    folder = os.open(OUT, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def pointed(state, step):
    torch.save(state, OUT / "new.tmp")
    os.replace(OUT / "new.tmp", OUT / f"step_{step:03d}.pt")
    if (OUT / "latest").is_symlink():
        (OUT / "latest").unlink()
    (OUT / "latest").symlink_to(f"step_{step:03d}.pt")


def pointed_early(state, step):
    (OUT / "latest.tmp").write_text(f"step_{step:03d}.pt")
    os.replace(OUT / "latest.tmp", OUT / "latest")
    torch.save(state, OUT / "new.tmp")
    os.replace(OUT / "new.tmp", OUT / f"step_{step:03d}.pt")


def blocked(state, step):
    folder = OUT / f"saving_{step:03d}"
    folder.mkdir()
    torch.save(state, folder / "model.pt")
    if LAST.exists():
        LAST.unlink()
    os.replace(folder / "model.pt", LAST)
    folder.rmdir()


def deleted(state, step):
    shutil.rmtree(OUT / "saved", ignore_errors=True)
    (OUT / "saved").mkdir()
    torch.save(state, OUT / "saved" / "model.pt")


def by_time(state, step):
    torch.save(state, OUT / "new.tmp")
    os.replace(OUT / "new.tmp", OUT / f"step_{step}.pt")


children = []


def by_child(state, step):
    while children:
        os.waitpid(children.pop(), 0)
    children.append(os.fork())
    if children[0] == 0:
        replaced(state, step)
        os._exit(0)


def apart(state, step):
    replaced({**state, "step": None}, step)
    (OUT / "position.tmp").write_text(str(step))
    os.replace(OUT / "position.tmp", OUT / "position")


def never(state, step):
    pass


def found():
    """Return the checkpoint to resume from, as each of the ways finds it."""
    if HOW in ("in_place", "replaced", "durable", "blocked", "by_child", "apart"):
        return LAST if LAST.exists() else None
    if HOW == "numbered":
        return max(OUT.glob("step_*.pt"), default=None)
    if HOW == "by_time":
        times = {path.stat().st_mtime: path for path in OUT.glob("step_*.pt")}
        return times[max(times)] if times else None
    if HOW == "pointed":
        return OUT / "latest" if (OUT / "latest").exists() else None
    if HOW == "pointed_early":
        pointer = OUT / "latest"
        return OUT / pointer.read_text() if pointer.exists() else None
    if HOW == "deleted":
        return OUT / "saved" / "model.pt" if (OUT / "saved").exists() else None
    return None


OUT.mkdir(exist_ok=True)
if HOW == "durable":  # else a power loss may take the folder itself along
    parent = os.open(".", os.O_RDONLY)
    os.fsync(parent)
    os.close(parent)
torch.manual_seed(0)
random.seed(0)
width = int(os.environ.get("WIDTH", "32"))
net = torch.nn.Sequential(
    torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 2)
)
opt = torch.optim.Adam(net.parameters(), 1e-2)
x, y = torch.randn(48, 8), torch.randint(0, 2, (48,))
start, path = 0, found()
if path is not None:
    state = torch.load(path)
    net.load_state_dict(state["net"])
    opt.load_state_dict(state["opt"])
    start = state["step"]
    if HOW == "apart":
        position = OUT / "position"
        start = int(position.read_text()) if position.exists() else 0
for step in range(start, 12):
    rows = torch.arange(4 * step, 4 * step + 4)
    loss = torch.nn.functional.cross_entropy(net(x[rows]), y[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if (step + 1) % 3 == 0:
        state = {"net": net.state_dict(), "opt": opt.state_dict(), "step": step + 1}
        globals()[HOW](state, step + 1)
while children:
    os.waitpid(children.pop(), 0)
