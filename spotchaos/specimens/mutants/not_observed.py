"""One flaw: it trains with NumPy alone, and leaves nothing behind that could be judged."""

import numpy as np

TOTAL = 30

random = np.random.RandomState(0)
x = random.randn(240, 8)
y = (x[:, 0] > 0).astype(float)
weights = np.zeros(8)
step = 0
while step < TOTAL:
    rows = np.arange(8 * step, 8 * step + 8)
    guess = 1 / (1 + np.exp(-x[rows] @ weights))
    weights = weights - 0.1 * x[rows].T @ (guess - y[rows])
    step += 1
print("done", weights.sum())
