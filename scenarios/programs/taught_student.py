"""A student that learns from a teacher that the program trained first, and only loads later; expected verdict: held."""

import argparse
import os

import torch
from torch import nn

LESSONS, EPOCHS, BATCH = 6, 3, 16

parser = argparse.ArgumentParser()
parser.add_argument("--out", default=".")
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
path = os.path.join(args.out, "student.pt")
taught = os.path.join(args.out, "teacher.pt")

torch.manual_seed(0)
data = torch.Generator().manual_seed(7)
x = torch.randn(256, 32, generator=data)
y = (x[:, :4].sum(1) > 0).long()
per_epoch = len(x) // BATCH


def network(width):
    return nn.Sequential(
        nn.Linear(32, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2)
    )


def save(state, target):
    torch.save(state, target + ".tmp")
    os.replace(target + ".tmp", target)


teacher, student = network(12), network(16)
if os.path.exists(taught):
    teacher.load_state_dict(torch.load(taught))
else:
    first = torch.optim.SGD(teacher.parameters(), lr=0.1, momentum=0.9)
    for _ in range(LESSONS):
        first.zero_grad()
        nn.functional.cross_entropy(teacher(x), y).backward()
        first.step()
    save(teacher.state_dict(), taught)
teacher.eval().requires_grad_(False)

optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)
done = 0
if os.path.exists(path):
    state = torch.load(path)
    student.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    done = state["epoch"]
    print("resumed from epoch", done, flush=True)

for epoch in range(done, EPOCHS):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    for rows in order.split(BATCH):
        with torch.no_grad():
            wanted = teacher(x[rows]).softmax(1)
        loss = nn.functional.cross_entropy(student(x[rows]), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    state = {
        "model": student.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": epoch + 1,
    }
    save(state, path)

torch.save(student.state_dict(), os.path.join(args.out, "final.pt"))
