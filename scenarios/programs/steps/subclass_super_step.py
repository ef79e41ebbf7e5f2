"""Ten steps of a subclass that calls super().step() while a base instance exists; expected: 10 real steps, the hook fires 20 times."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
x, y = torch.randn(80, 8), torch.randint(0, 2, (80,))


class ClippedAdam(torch.optim.Adam):
    def step(self, closure=None):
        for group in self.param_groups:
            nn.utils.clip_grad_norm_(group["params"], 1.0)
        return super().step(closure)


# Making one puts the hooks around Adam.step itself, which ClippedAdam calls inside its own.
spare = torch.optim.Adam([nn.Parameter(torch.zeros(1))])
optimizer = ClippedAdam(model.parameters(), lr=1e-2)

steps = 0
for first in range(0, 80, 8):
    loss = cross_entropy(model(x[first : first + 8]), y[first : first + 8])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    steps += 1
print("real steps:", steps)
