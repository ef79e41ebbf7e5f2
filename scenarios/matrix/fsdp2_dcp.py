"""FSDP2 on two gloo ranks, saved with DCP: a folder a step, with every rank's RNG."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, BATCH, SAVE_EVERY, OUT = 24, 8, 6, "out"


def newest():
    if not os.path.isdir(OUT):
        return 0
    whole = [n for n in os.listdir(OUT) if os.path.exists(f"{OUT}/{n}/.metadata")]
    return max((int(name[5:]) for name in whole), default=0)


def collect(model, optimizer, rank):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {
        "model": model_state,
        "optimizer": optimizer_state,
        f"rng_{rank}": torch.get_rng_state(),
    }


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    x, y = torch.randn(256, 16), torch.randn(256, 4)
    model = nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4)
    )
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(100 + rank)

    step = newest()
    dist.barrier()
    if step:
        state = collect(model, optimizer, rank)
        dcp.load(state, checkpoint_id=f"{OUT}/step_{step}")
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        torch.set_rng_state(state[f"rng_{rank}"])
    while step < STEPS:
        at = (step * world + rank) * BATCH % len(x)
        loss = nn.functional.mse_loss(model(x[at : at + BATCH]), y[at : at + BATCH])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % SAVE_EVERY == 0:
            state = collect(model, optimizer, rank)
            dcp.save(state, checkpoint_id=f"{OUT}/step_{step}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
