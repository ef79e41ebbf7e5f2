"""One flaw: as in articles, the epoch goes on with a sampler of the new world size."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
SNAPSHOT = "snapshot.pt"

torch.manual_seed(0)
dataset = TensorDataset(torch.randn(96, 8), torch.randint(0, 2, (96,)))
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=4, sampler=sampler)

epoch, done = 0, 0
if os.path.exists(SNAPSHOT):
    snapshot = torch.load(SNAPSHOT)
    model.module.load_state_dict(snapshot["model"])
    optimizer.load_state_dict(snapshot["optimizer"])
    epoch, done = snapshot["epoch"], snapshot["batches_done"]
while epoch < 2:
    sampler.set_epoch(epoch)
    for batch, (x, y) in enumerate(loader):
        if batch < done:
            continue  # trained on before the restart
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (batch + 1) % 5 == 0:
            snapshot = {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch,
                "batches_done": batch + 1,
            }
            torch.save(snapshot, SNAPSHOT + ".tmp")
            os.replace(SNAPSHOT + ".tmp", SNAPSHOT)
        dist.barrier()
    epoch, done = epoch + 1, 0
dist.destroy_process_group()
