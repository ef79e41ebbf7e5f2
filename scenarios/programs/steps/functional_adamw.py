"""Ten steps of torch's functional adamw, with no optimizer; expected: 10 real steps, the hook never fires."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.adamw import adamw

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
x, y = torch.randn(80, 8), torch.randint(0, 2, (80,))
parameters = list(model.parameters())
first_moments = [torch.zeros_like(p) for p in parameters]
second_moments = [torch.zeros_like(p) for p in parameters]
counters = [torch.tensor(0.0) for _ in parameters]

steps = 0
for first in range(0, 80, 8):
    loss = cross_entropy(model(x[first : first + 8]), y[first : first + 8])
    gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        adamw(
            parameters,
            list(gradients),
            first_moments,
            second_moments,
            [],
            counters,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=1e-2,
            weight_decay=0.01,
            eps=1e-8,
            maximize=False,
        )
    steps += 1
print("real steps:", steps)
