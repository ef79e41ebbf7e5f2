"""An accelerate loop with stateful loaders, whose position goes with the checkpoint."""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, SAVE_EVERY, OUT = 3, 10, "out"


def newest(folder):
    steps = [int(name[5:]) for name in os.listdir(folder) if name.startswith("step_")]
    return max(steps, default=0)


def main():
    os.makedirs(OUT, exist_ok=True)
    set_seed(0)
    data = torch.Generator().manual_seed(7)
    x = torch.randn(256, 32, generator=data)
    y = (x[:, :4].sum(1) > 0).long() + 2 * (x[:, 4:8].sum(1) > 0).long()
    accelerator = Accelerator(
        cpu=True,
        dataloader_config=DataLoaderConfiguration(
            use_stateful_dataloader=True, use_seedable_sampler=True
        ),
    )
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    step = newest(OUT)
    if step:
        accelerator.load_state(os.path.join(OUT, f"step_{step}"))
    for epoch in range(step // len(loader), EPOCHS):
        loader.set_epoch(epoch)
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % SAVE_EVERY == 0:
                accelerator.save_state(os.path.join(OUT, f"step_{step}"))
    accelerator.end_training()


if __name__ == "__main__":
    main()
