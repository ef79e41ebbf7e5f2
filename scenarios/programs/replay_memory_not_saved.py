"""Q-learning from a memory of what it did, which is not saved; expected verdict: violated."""

import argparse
import math
import os
import random
from collections import deque

import torch
from torch import nn

STEPS, SAVE_EVERY, BATCH = 48, 10, 16

parser = argparse.ArgumentParser()
parser.add_argument("--out", default=".")
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
path = os.path.join(args.out, "checkpoint.pt")

random.seed(0)
torch.manual_seed(0)


class Pole:
    """A pole that falls; every number it draws is of Python's stream."""

    def __init__(self):
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        self.age = 0

    def step(self, action):
        x, v, angle, spin = self.state
        push = (10.0 if action else -10.0) + 0.1 * spin * spin * math.sin(angle)
        turn = 9.8 * math.sin(angle) - push * math.cos(angle)
        self.state = [
            x + 0.02 * v,
            v + 0.02 * push,
            angle + 0.02 * spin,
            spin + 0.02 * turn,
        ]
        self.age += 1
        return abs(self.state[2]) > 0.25 or self.age >= 30


policy, target = (
    nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 2)) for _ in range(2)
)
target.load_state_dict(policy.state_dict())
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, amsgrad=True)
memory = deque(maxlen=1000)
pole, step, acted = Pole(), 0, 0
if os.path.exists(path):
    saved = torch.load(path, weights_only=False)
    policy.load_state_dict(saved["policy"])
    target.load_state_dict(saved["target"])
    optimizer.load_state_dict(saved["optimizer"])
    step, acted = saved["step"], saved["acted"]
    pole.state, pole.age = saved["pole"]
    random.setstate(saved["random"])
    print("resumed from step", step, flush=True)


def act(state):
    """Return what to do: at random at first, less and less so later."""
    global acted
    acted += 1
    if random.random() < 0.05 + 0.85 * math.exp(-acted / 100):
        return random.randrange(2)
    with torch.no_grad():
        return int(policy(torch.tensor([state])).argmax())


while step < STEPS:
    before = pole.state
    action = act(before)
    has_fallen = pole.step(action)
    memory.append((before, action, pole.state, has_fallen))
    if has_fallen:
        pole = Pole()
    if len(memory) < BATCH:
        continue
    states, actions, following, ends = zip(*random.sample(memory, BATCH), strict=True)
    value = policy(torch.tensor(states)).gather(1, torch.tensor(actions).unsqueeze(1))
    with torch.no_grad():
        later = target(torch.tensor(following)).max(1).values
    wanted = 1 + 0.99 * later * ~torch.tensor(ends)
    loss = nn.functional.smooth_l1_loss(value, wanted.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), policy.parameters(), strict=True):
            slow.lerp_(fast, 0.005)
    print("step", step, "loss", loss.item(), flush=True)
    if step % SAVE_EVERY == 0:
        saved = {
            "policy": policy.state_dict(),
            "target": target.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
            "acted": acted,
            "pole": (pole.state, pole.age),
            "random": random.getstate(),
        }
        torch.save(saved, path + ".tmp")
        os.replace(path + ".tmp", path)

final = {"policy": policy.state_dict(), "target": target.state_dict()}
torch.save(final, os.path.join(args.out, "final.pt"))
