"""One flaw: the link to the newest checkpoint is removed before the new one is made."""

import os

import torch

ROOT, STEPS, EVERY = "ck", 30, 5


def settle(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def point_at(name):
    link = os.path.join(ROOT, "latest")
    if os.path.islink(link):
        os.unlink(link)
    os.symlink(name, link)
    settle(ROOT)


torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
os.makedirs(ROOT, exist_ok=True)
settle(".")
step = 0
link = os.path.join(ROOT, "latest")
if os.path.islink(link):
    saved = torch.load(os.path.join(link, "state.pt"))
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]

while step < STEPS:
    g = torch.Generator().manual_seed(step)
    x, y = torch.randn(6, 5, generator=g), torch.randn(6, 2, generator=g)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    step += 1
    if step % EVERY == 0:
        name = f"step{step}"
        folder = os.path.join(ROOT, name)
        os.makedirs(folder, exist_ok=True)
        temporary = os.path.join(folder, "state.tmp")
        with open(temporary, "wb") as f:
            torch.save(
                {
                    "model": model.state_dict(),
                    "step": step,
                    "optimizer": optimizer.state_dict(),
                },
                f,
            )
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, os.path.join(folder, "state.pt"))
        settle(folder)
        settle(ROOT)
        point_at(name)
