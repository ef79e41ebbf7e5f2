"""No flaw: on the core, an error on any rank reaches all of them, and each ends."""

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
x = torch.randn(192, 8)
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


with InterruptionWatch() as watch:
    trainer = Trainer(
        model=model,
        data=TensorDataset(x, y),
        loss_of=loss_of,
        keeper=Keeper(CheckpointStore("checkpoints", run_id="barrier", keep=2)),
        peers=join(timeout_s=60.0),
        schedule=Schedule(steps=24, save_every=4, batch=8),
        watch=watch,
    )
    finished = trainer.run()
    trainer.close()
sys.exit(0 if finished else 143)
