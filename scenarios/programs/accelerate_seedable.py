"""An accelerate loop with the seedable sampler and no dropout; expected verdict: held, with a note that torch's RNG moved."""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, SAVE_EVERY = 3, 10


def newest(folder):
    steps = [int(name[5:]) for name in os.listdir(folder) if name.startswith("step_")]
    return max(steps, default=0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=".")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)

    set_seed(0)
    data = torch.Generator().manual_seed(7)
    x = torch.randn(256, 32, generator=data)
    y = (x[:, :4].sum(1) > 0).long() + 2 * (x[:, 4:8].sum(1) > 0).long()

    accelerator = Accelerator(
        cpu=True,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=48)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(
        model, optimizer, loader, scheduler
    )

    step = newest(args.out)
    if step:
        accelerator.load_state(os.path.join(args.out, f"step_{step}"))
        print("resumed from step", step, flush=True)
    first_epoch, skip = divmod(step, len(loader))

    for epoch in range(first_epoch, EPOCHS):
        loader.set_epoch(epoch)
        batches = loader
        if epoch == first_epoch and skip:
            batches = accelerator.skip_first_batches(loader, skip)
        for inputs, labels in batches:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            print("step", step, "loss", loss.item(), flush=True)
            if step % SAVE_EVERY == 0 or step == EPOCHS * len(loader):
                accelerator.save_state(os.path.join(args.out, f"step_{step}"))

    final = accelerator.unwrap_model(model).state_dict()
    torch.save(final, os.path.join(args.out, "final.pt"))
    accelerator.end_training()


if __name__ == "__main__":
    main()
