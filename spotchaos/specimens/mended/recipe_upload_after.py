"""No flaw: on the core, an upload that fails ends the run, and the next start goes on."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spotchaos.training as core
from spotchaos.stores import open_store

STEPS, BATCH, SAVE_EVERY = 30, 8, 10

core.seed_everything(0)
data = TensorDataset(torch.randn(120, 8), torch.randint(0, 2, (120,)))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = core.ResumableSampler(data, seed=0, multiple_of=BATCH)
loader = DataLoader(data, BATCH, sampler=sampler, generator=torch.Generator())
state = core.TrainingState(model=model, optimizers=optimizer, sampler=sampler)
store = core.CheckpointStore("checkpoints", run_id="recipe-upload-after", keep=2)
mirror = core.Mirror(store, open_store("s3://checkpoints/run"))
keeper = core.Keeper(store, mirror=mirror, in_background=False)
keeper.prepare()
if (saved := store.load_latest()) is not None:
    state.restore(saved)

while state.step < STEPS:
    if sampler.epoch_is_over:
        sampler.next_epoch()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sampler.advance(len(x))
        state.step += 1
        if state.step % SAVE_EVERY == 0:
            keeper.save(state.capture(), step=state.step)
            keeper.wait()
        if state.step == STEPS:
            break
sys.exit(0)
