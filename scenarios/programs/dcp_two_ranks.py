"""DDP on two gloo ranks saved with DCP, a folder a step, every rank's RNG in it; expected verdict: held."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

EPOCHS, BATCH, SAVE_EVERY = 3, 8, 10


def newest(folder):
    """A folder counts once rank 0 has put its .metadata there, which DCP does last."""
    steps = [
        int(name[5:])
        for name in os.listdir(folder)
        if name.startswith("step_")
        and os.path.exists(os.path.join(folder, name, ".metadata"))
    ]
    return max(steps, default=0)


def collect(model, optimizer, scheduler, rank):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {
        "model": model_state,
        "optimizer": optimizer_state,
        "scheduler": scheduler.state_dict(),
        f"rng_{rank}": torch.get_rng_state(),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=".")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)

    for name, value in [
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29511"),
    ]:
        os.environ.setdefault(name, value)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    data = torch.Generator().manual_seed(7)
    x = torch.randn(256, 32, generator=data)
    y = (x[:, :4].sum(1) > 0).long() + 2 * (x[:, 4:8].sum(1) > 0).long()
    model = nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4)
    )
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=48)
    torch.manual_seed(100 + rank)  # each rank drops other units

    per_epoch = len(x) // (BATCH * world)
    step = newest(args.out)
    dist.barrier()  # nobody saves before everybody has looked
    if step:
        state = collect(ddp, optimizer, scheduler, rank)
        dcp.load(state, checkpoint_id=os.path.join(args.out, f"step_{step}"))
        set_state_dict(
            ddp,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state[f"rng_{rank}"])
        print("rank", rank, "resumed from step", step, flush=True)

    for epoch in range(step // per_epoch, EPOCHS):
        generator = torch.Generator().manual_seed(1000 + epoch)
        order = torch.randperm(len(x), generator=generator)[rank::world]
        for position in range(step - epoch * per_epoch, per_epoch):
            rows = order[position * BATCH : (position + 1) * BATCH]
            loss = nn.functional.cross_entropy(ddp(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if rank == 0:
                print("step", step, "loss", loss.item(), flush=True)
            if step % SAVE_EVERY == 0 or step == EPOCHS * per_epoch:
                state = collect(ddp, optimizer, scheduler, rank)
                dcp.save(state, checkpoint_id=os.path.join(args.out, f"step_{step}"))

    if rank == 0:
        torch.save(model.state_dict(), os.path.join(args.out, "final.pt"))
    dist.barrier()
    del ddp  # a live DDP can hang the exit of gloo
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
