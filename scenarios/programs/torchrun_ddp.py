"""DDP on two gloo ranks under torchrun, rank 0 saving every rank's RNG with the rest; expected verdict: held."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, TensorDataset

EPOCHS, BATCH, SAVE_EVERY = 3, 8, 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=".")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, "checkpoint.pt")

    dist.init_process_group("gloo")
    rank = dist.get_rank()

    torch.manual_seed(0)
    data = torch.Generator().manual_seed(7)
    x = torch.randn(256, 32, generator=data)
    y = (x[:, :4].sum(1) > 0).long()
    train_set = TensorDataset(x, y)
    sampler = DistributedSampler(train_set, shuffle=True, seed=3)
    model = nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 2)
    )
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=48)
    torch.manual_seed(100 + rank)  # each rank drops other units

    step = 0
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["rng"][rank])
        step = state["step"]
        print("rank", rank, "resumed from step", step, flush=True)
    dist.barrier()  # nobody saves before everybody has read

    per_epoch = len(sampler) // BATCH
    for epoch in range(step // per_epoch, EPOCHS):
        sampler.set_epoch(epoch)
        order = list(sampler)
        for position in range(step - epoch * per_epoch, per_epoch):
            rows = order[position * BATCH : (position + 1) * BATCH]
            inputs, labels = train_set[rows]
            loss = nn.functional.cross_entropy(ddp(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if rank == 0:
                print("step", step, "loss", loss.item(), flush=True)
            if step % SAVE_EVERY == 0 or step == EPOCHS * per_epoch:
                rng = [None] * dist.get_world_size()
                dist.all_gather_object(rng, torch.get_rng_state())
                if rank == 0:
                    state = {
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "scheduler": scheduler.state_dict(),
                        "rng": rng,
                        "step": step,
                    }
                    torch.save(state, path + ".tmp")
                    os.replace(path + ".tmp", path)

    if rank == 0:
        torch.save(model.state_dict(), os.path.join(args.out, "final.pt"))
    dist.barrier()
    del ddp  # a live DDP can hang the exit of gloo
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
