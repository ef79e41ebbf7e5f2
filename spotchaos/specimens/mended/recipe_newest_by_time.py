"""No flaw: the core counts steps done, and keeps everything that a step reads."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spotchaos.training as core

STEPS, BATCH, SAVE_EVERY = 30, 8, 5

core.seed_everything(0)
data = TensorDataset(torch.randn(120, 8), torch.randint(0, 2, (120,)))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
sampler = core.ResumableSampler(data, seed=0, multiple_of=BATCH)
loader = DataLoader(data, BATCH, sampler=sampler, generator=torch.Generator())
state = core.TrainingState(
    model=model, optimizers=optimizer, schedulers=schedule, sampler=sampler
)
store = core.CheckpointStore("checkpoints", run_id="recipe-newest-by-time", keep=2)
store.prepare()
if (saved := store.load_latest()) is not None:
    state.restore(saved)

with core.InterruptionWatch() as watch:
    while state.step < STEPS:
        if sampler.epoch_is_over:
            sampler.next_epoch()
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            sampler.advance(len(x))
            state.step += 1
            if watch.requested or state.step % SAVE_EVERY == 0:
                store.save(state.capture(), step=state.step)
                watch.mark_saved()
            if watch.must_stop and state.step < STEPS:
                sys.exit(143)
            if state.step == STEPS:
                break
