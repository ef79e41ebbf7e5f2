"""A DataLoader with two workers, resumed at its place with everything else; expected verdict: held."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS, BATCH, SAVE_EVERY = 3, 16, 10


class Noisy(Dataset):
    """Noise that depends on the epoch and the sample, not on which worker fetches it."""

    def __init__(self, epoch):
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(256, 32, generator=generator)
        self.epoch = epoch

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.epoch * len(self) + index)
        x = self.x[index] + 0.1 * torch.randn(32, generator=generator)
        return x, int(self.x[index, :4].sum() > 0)


class Remaining:
    """The order of an epoch, from a position on."""

    def __init__(self, size, epoch, position):
        generator = torch.Generator().manual_seed(1000 + epoch)
        self.order = torch.randperm(size, generator=generator).tolist()[position:]

    def __iter__(self):
        return iter(self.order)

    def __len__(self):
        return len(self.order)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=".")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, "checkpoint.pt")

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    step = 0
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        torch.set_rng_state(state["rng"])
        print("resumed from step", step, flush=True)

    per_epoch = 256 // BATCH
    for epoch in range(step // per_epoch, EPOCHS):
        dataset = Noisy(epoch)
        done = step - epoch * per_epoch
        loader = DataLoader(
            dataset,
            batch_size=BATCH,
            sampler=Remaining(len(dataset), epoch, done * BATCH),
            num_workers=2,
            # Its own generator, else iterating it would move the global one.
            generator=torch.Generator().manual_seed(epoch),
        )
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print("step", step, "loss", loss.item(), flush=True)
            if step % SAVE_EVERY == 0 or step == EPOCHS * per_epoch:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": step,
                    "rng": torch.get_rng_state(),
                }
                torch.save(state, path + ".tmp")
                os.replace(path + ".tmp", path)

    torch.save(model.state_dict(), os.path.join(args.out, "final.pt"))


if __name__ == "__main__":
    main()
