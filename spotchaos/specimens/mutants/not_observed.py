"""One flaw: it trains with NumPy alone, where the probe sees no step."""

import os

import numpy as np

TOTAL, SAVE_EVERY = 30, 5
LAST = "checkpoints/last.npz"

random = np.random.RandomState(0)
x = random.randn(240, 8)
y = (x[:, 0] > 0).astype(float)
weights = np.zeros(8)
step = 0
if os.path.exists(LAST):
    state = np.load(LAST)
    weights, step = state["weights"], int(state["step"])
while step < TOTAL:
    rows = np.arange(8 * step, 8 * step + 8)
    guess = 1 / (1 + np.exp(-x[rows] @ weights))
    weights = weights - 0.1 * x[rows].T @ (guess - y[rows])
    step += 1
    if step % SAVE_EVERY == 0:
        os.makedirs("checkpoints", exist_ok=True)
        np.savez("checkpoints/new.npz", weights=weights, step=step)
        os.replace("checkpoints/new.npz", LAST)
print("done")
