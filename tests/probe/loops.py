"""Pieces of programs that tests of the probe put together."""

HEAD = """
import copy, random, numpy.random, torch
from torch import nn
random.seed(0); numpy.random.seed(0)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 2))
x = torch.randn(96, 8)
"""
LOOP = """
for step in range({start}, {stop}):
    loss = net(x[8 * step : 8 * step + 8]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
ADAM = "opt = torch.optim.AdamW(net.parameters(), 1e-2)\n"


def steps(start=0, stop=6):
    return LOOP.format(start=start, stop=stop)
