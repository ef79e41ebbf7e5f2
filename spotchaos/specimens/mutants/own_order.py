"""One flaw: after a resume an order of the data set's own begins again."""

import os
import random

import torch
from torch.utils.data import DataLoader, IterableDataset

SAMPLES, BATCH, STEPS, SAVE_EVERY = 200, 8, 40, 10
LAST = "last.pt"

torch.manual_seed(7)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
g = torch.Generator().manual_seed(1)
x, y = torch.randn(SAMPLES, 4, generator=g), torch.randn(SAMPLES, 1, generator=g)


class Endless(IterableDataset):
    """One order after the other, of a generator of its own."""

    def __iter__(self):
        rng = random.Random(42)
        while True:
            order = list(range(SAMPLES))
            rng.shuffle(order)
            for i in order:
                yield x[i], y[i]


def batches():
    yield from DataLoader(Endless(), batch_size=BATCH)


def evaluate():
    # Makes an iterator, which draws a seed from torch's stream that nobody uses.
    inputs, labels = next(batches())
    with torch.no_grad():
        return torch.nn.functional.mse_loss(model(inputs), labels).item()


step = 0
if os.path.exists(LAST):
    saved = torch.load(LAST)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
stream = batches()
while step < STEPS:
    inputs, labels = next(stream)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), labels).backward()
    optimizer.step()
    step += 1
    if step % SAVE_EVERY == 0:
        evaluate()
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
        }
        torch.save(state, LAST + ".tmp")
        os.replace(LAST + ".tmp", LAST)
