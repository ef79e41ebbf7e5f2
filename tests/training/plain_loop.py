"""A plain loop that survives being interrupted, without our trainer: shown in the README."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from spotchaos.training import (
    CheckpointStore,
    InterruptionWatch,
    ResumableSampler,
    TrainingState,
    deaf_workers,
    seed_everything,
)

out, steps = sys.argv[1], int(sys.argv[2])
seed_everything(0)  # every stream: random, numpy, torch
data = TensorDataset(torch.randn(40, 6), torch.randint(0, 3, (40,)))
model = torch.nn.Sequential(
    torch.nn.Linear(6, 9), torch.nn.Dropout(0.2), torch.nn.Linear(9, 3)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
sampler = ResumableSampler(data, seed=0, multiple_of=4)
loader = DataLoader(data, batch_size=4, sampler=sampler, generator=torch.Generator())
state = TrainingState(
    model=model, optimizers=optimizer, schedulers=schedule, sampler=sampler
)
store = CheckpointStore(out, run_id="plain-loop")
store.prepare()
saved = store.load_latest()
if saved is not None:
    state.restore(saved)

with InterruptionWatch() as watch:
    while state.step < steps:
        if sampler.epoch_is_over:
            sampler.next_epoch()
        with deaf_workers():
            batches = iter(loader)
        for x, y in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
            sampler.advance(len(x))
            state.step += 1
            if watch.wish or state.step % 5 == 0 or state.step == steps:
                store.save(state.capture(), step=state.step)
            if watch.wish and state.step < steps:
                sys.exit(143)
            if state.step == steps:
                break
