"""No flaw: on the core, virtual workers keep their samples on however many ranks."""

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

from spotchaos.training import (
    CheckpointStore,
    InterruptionWatch,
    Keeper,
    Schedule,
    Trainer,
    join,
)

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 8), torch.randint(0, 2, (96,)))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


with InterruptionWatch() as watch:
    trainer = Trainer(
        model=model,
        data=data,
        loss_of=loss_of,
        keeper=Keeper(CheckpointStore("checkpoints", run_id="resplit", keep=2)),
        peers=join(timeout_s=60.0),
        schedule=Schedule(steps=24, save_every=5, batch=4),
        watch=watch,
        virtual_workers=2,
    )
    finished = trainer.run()
    trainer.close()
sys.exit(0 if finished else 143)
