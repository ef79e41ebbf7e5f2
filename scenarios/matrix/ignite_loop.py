"""An ignite engine with its Checkpoint handler, resumed as ignite's guide shows."""

import os

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, OUT = 3, "out"


def main():
    torch.manual_seed(0)
    data = torch.Generator().manual_seed(7)
    x, y = torch.randn(160, 16, generator=data), torch.randn(160, 4, generator=data)
    model = nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)

    def update(engine, batch):
        model.train()
        inputs, labels = batch
        loss = nn.functional.mse_loss(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    trainer = Engine(update)
    saved = {"model": model, "optimizer": optimizer, "trainer": trainer}
    handler = Checkpoint(saved, DiskSaver(OUT, require_empty=False), n_saved=2)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=5), handler)
    if os.path.isdir(OUT) and os.listdir(OUT):
        newest = max(os.listdir(OUT), key=lambda n: int(n.split("_")[-1].split(".")[0]))
        Checkpoint.load_objects(saved, torch.load(os.path.join(OUT, newest)))
    trainer.run(loader, max_epochs=EPOCHS)


if __name__ == "__main__":
    main()
