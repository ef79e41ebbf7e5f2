"""One flaw: saves run in a pool, and nobody asks the last one how it went."""

import copy
import os
from concurrent.futures import ThreadPoolExecutor

import torch

ASK_AT_THE_END = False
STEPS, EVERY = 30, 6
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
os.makedirs("ck", exist_ok=True)
pool, pending = ThreadPoolExecutor(1), None


def write(state):
    torch.save(state, "ck/state.new")
    os.replace("ck/state.new", "ck/state.pt")


step = 0
if os.path.exists("ck/state.pt"):
    saved = torch.load("ck/state.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
while step < STEPS:
    g = torch.Generator().manual_seed(step)
    x = torch.randn(8, 5, generator=g)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
    step += 1
    if step % EVERY == 0:
        if pending is not None:
            pending.result()
        pending = pool.submit(
            write,
            copy.deepcopy(
                {
                    "model": model.state_dict(),
                    "step": step,
                    "optimizer": optimizer.state_dict(),
                }
            ),
        )
pool.shutdown()
if ASK_AT_THE_END and pending is not None:
    pending.result()
