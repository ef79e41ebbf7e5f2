"""An IterableDataset that makes its samples from a seed and skips to where it was; expected verdict: held."""

import argparse
import itertools
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

EPOCHS, BATCH, SAVE_EVERY = 3, 16, 10
PER_EPOCH = 16  # batches


class Stream(IterableDataset):
    """An endless source in principle; one epoch of it ends after 256 samples."""

    def __init__(self, epoch, skip):
        self.epoch, self.skip = epoch, skip

    def samples(self):
        generator = torch.Generator().manual_seed(1000 + self.epoch)
        for _ in range(PER_EPOCH * BATCH):
            x = torch.randn(32, generator=generator)
            yield x, (x[:4].sum() > 0).long()

    def __iter__(self):
        return itertools.islice(self.samples(), self.skip, None)


parser = argparse.ArgumentParser()
parser.add_argument("--out", default=".")
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
path = os.path.join(args.out, "checkpoint.pt")

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

step, rng = 0, None
if os.path.exists(path):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step, rng = state["step"], state["rng"]
    print("resumed from step", step, flush=True)

for epoch in range(step // PER_EPOCH, EPOCHS):
    done = step - epoch * PER_EPOCH
    # The loader draws its base seed when it is iterated: from a generator of its own.
    loader = DataLoader(
        Stream(epoch, done * BATCH),
        batch_size=BATCH,
        generator=torch.Generator().manual_seed(epoch),
    )
    batches = iter(loader)
    if rng is not None:
        torch.set_rng_state(rng)
        rng = None
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        print("step", step, "loss", loss.item(), flush=True)
        if step % SAVE_EVERY == 0 or step == EPOCHS * PER_EPOCH:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step,
                "rng": torch.get_rng_state(),
            }
            torch.save(state, path + ".tmp")
            os.replace(path + ".tmp", path)

torch.save(model.state_dict(), os.path.join(args.out, "final.pt"))
