"""A training loop that survives being lost: started again, it goes on, bit for bit."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import spotchaos.training as core

out, steps = sys.argv[1], int(sys.argv[2])
core.seed_everything(0)  # every stream: random, numpy, torch
data = TensorDataset(torch.randn(40, 6), torch.randint(0, 3, (40,)))
model = torch.nn.Sequential(
    torch.nn.Linear(6, 9), torch.nn.Dropout(0.2), torch.nn.Linear(9, 3)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
sampler = core.ResumableSampler(data, seed=0, multiple_of=4)
loader = DataLoader(data, batch_size=4, sampler=sampler, generator=torch.Generator())
state = core.TrainingState(
    model=model, optimizers=optimizer, schedulers=schedule, sampler=sampler
)
store = core.CheckpointStore(out, run_id="plain-loop", keep=2)
store.prepare()
if (saved := store.load_latest()) is not None:
    state.restore(saved)  # random streams last

with core.InterruptionWatch() as watch:
    while state.step < steps:
        if sampler.epoch_is_over:
            sampler.next_epoch()
        with core.ignore_signals_in_workers():  # signals are for this process alone
            batches = iter(loader)
        for x, y in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
            sampler.advance(len(x))  # what was trained on, not what was fetched
            state.step += 1
            if watch.requested or state.step % 5 == 0 or state.step == steps:
                store.save(state.capture(), step=state.step)
                watch.mark_saved()
            if watch.must_stop and state.step < steps:
                sys.exit(143)  # not finished: start me again
            if state.step == steps:
                break
