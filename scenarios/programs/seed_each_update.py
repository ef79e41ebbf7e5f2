"""A seed for each update and the iterator's place, no random state in the file; expected verdict: held."""

import argparse
import itertools
import os
import shutil

import numpy as np
import torch
from torch import nn

EPOCHS, UPDATE_FREQ, SAVE_EVERY = 4, 2, 5

parser = argparse.ArgumentParser()
parser.add_argument("--out", default=".")
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
last = os.path.join(args.out, "checkpoint_last.pt")

tokens = torch.randint(0, 30, (96, 7), generator=torch.Generator().manual_seed(7))
batches = [list(range(first, first + 4)) for first in range(0, 96, 4)]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.dropout = nn.Dropout(0.3)
        self.out = nn.Linear(16, 30)

    def forward(self, source):
        return self.out(self.dropout(self.embed(source)))


torch.manual_seed(1)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
updates, epoch, offset = 0, 1, 0
if os.path.exists(last):
    state = torch.load(last)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["last_optimizer_state"])
    updates = state["num_updates"]
    epoch, offset = state["train_iterator"]
    print("resumed at epoch", epoch, "update", updates, flush=True)


def train_step(samples):
    torch.manual_seed(1 + updates)  # dropout is a function of the update
    rate = 0.01 * min((updates + 1) / 8, (8 / (updates + 1)) ** 0.5)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    for rows in samples:
        logits = model(tokens[rows, :-1]).flatten(0, 1)
        loss = nn.functional.cross_entropy(
            logits, tokens[rows, 1:].flatten(), reduction="sum"
        )
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def save(name, epoch, offset):
    state = {
        "model": model.state_dict(),
        "last_optimizer_state": optimizer.state_dict(),
        "num_updates": updates,
        "train_iterator": (epoch, offset),
    }
    path = os.path.join(args.out, name)
    torch.save(state, path)
    shutil.copyfile(path, last + ".tmp")
    os.replace(last + ".tmp", last)


while epoch <= EPOCHS:
    order = np.random.RandomState(1 + epoch).permutation(len(batches))[offset:]
    places = iter(order)
    while chunk := list(itertools.islice(places, UPDATE_FREQ)):
        train_step([batches[place] for place in chunk])
        updates, offset = updates + 1, offset + len(chunk)
        if updates % SAVE_EVERY == 0:
            save(f"checkpoint_{epoch}_{updates}.pt", epoch, offset)
    epoch, offset = epoch + 1, 0
    save(f"checkpoint{epoch - 1}.pt", epoch, offset)

torch.save(model.state_dict(), os.path.join(args.out, "final.pt"))
