"""One flaw: after a resume the workers hold the data set as it was before it was changed."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

torch.manual_seed(1)
EPOCHS, CLOSE, PER_EPOCH, BATCH, FILE = 5, 2, 8, 4, "last.pt"


class Pictures(Dataset):
    """Each picture is half another one, until that is turned off."""

    def __init__(self):
        g = torch.Generator().manual_seed(5)
        self.x = torch.randn(PER_EPOCH * BATCH, 10, generator=g)
        self.y = (self.x.sum(1) > 0).long()
        self.mosaic = True

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        if not self.mosaic:
            return self.x[i], self.y[i]
        j = (i * 5 + 3) % len(self.x)
        return torch.cat([self.x[i][:5], self.x[j][5:]]), self.y[i]


class Order(Sampler):
    """Another order in each epoch."""

    epoch = 0

    def __iter__(self):
        g = torch.Generator().manual_seed(100 + self.epoch)
        return iter(torch.randperm(PER_EPOCH * BATCH, generator=g).tolist())

    def __len__(self):
        return PER_EPOCH * BATCH


def close_mosaic():
    data.mosaic = False


def restart_workers():
    setattr(loader, "_iterator", None)  # noqa: B010 - as published trainers do


data, order = Pictures(), Order()
loader = DataLoader(
    data,
    BATCH,
    sampler=order,
    num_workers=1,
    persistent_workers=True,
    generator=torch.Generator().manual_seed(0),
)
iter(loader)  # start the workers early
net = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
first = 0
if os.path.exists(FILE):
    saved = torch.load(FILE)
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["epoch"] + 1
    if first > CLOSE:
        close_mosaic()
for epoch in range(first, EPOCHS):
    if epoch == CLOSE:
        close_mosaic()
        restart_workers()
    order.epoch = epoch
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    state = {
        "net": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": epoch,
    }
    torch.save(state, "tmp.pt")
    with open("tmp.pt", "rb+") as f:
        os.fsync(f.fileno())
    os.replace("tmp.pt", FILE)
