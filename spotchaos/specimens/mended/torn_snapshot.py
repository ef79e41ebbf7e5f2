"""No flaw: a thread writes copies of the tensors, made at the end of the step."""

import os
import threading
import time

import torch
from torch import nn

TOTAL, PER_EPOCH, BATCH, SAVE_EVERY = 30, 15, 8, 10
LAST = "checkpoints/last.pt"

torch.manual_seed(0)
x = torch.randn(PER_EPOCH * BATCH, 8)
y = (x[:, 0] > 0).long()

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=TOTAL)
os.makedirs("checkpoints", exist_ok=True)


class Slow:
    """A tensor that is read when its turn comes, as a large one on a slow disk is."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce__(self):
        time.sleep(0.05)
        return torch.tensor, (self.tensor.tolist(),)


def write(state):
    torch.save(state, LAST + ".tmp")
    os.replace(LAST + ".tmp", LAST)


def save(step):
    state = {
        "step": step,
        "model": {
            name: Slow(tensor.clone()) for name, tensor in model.state_dict().items()
        },
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "rng": torch.get_rng_state(),
    }
    writer = threading.Thread(target=write, args=[state])
    writer.start()
    return writer


def load():
    if not os.path.exists(LAST):
        return 0
    state = torch.load(LAST, weights_only=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    torch.set_rng_state(state["rng"])
    return state["step"]


writer = None
for step in range(load(), TOTAL):
    epoch, position = divmod(step, PER_EPOCH)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    rows = order[position * BATCH :][:BATCH]
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    time.sleep(0.05)
    if (step + 1) % SAVE_EVERY == 0:
        if writer is not None:
            writer.join()
        writer = save(step + 1)
writer.join()
print("done")
