"""No flaw: after the load two modules share one parameter again."""

import os

import torch
from torch import nn

WORDS, WIDTH, STEPS, SAVE_EVERY = 20, 8, 30, 5
LAST = "last.pt"


class Words(nn.Module):
    """The matrix that embeds words also tells which one comes next."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words):
        return self.head(torch.tanh(self.body(self.embedding(words))))


def load():
    if not os.path.exists(LAST):
        return 0
    saved = torch.load(LAST)
    for name, value in saved["model"].items():
        place, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(place), leaf, nn.Parameter(value))
    model.head.weight = model.embedding.weight
    return saved["step"]


torch.manual_seed(0)
model = Words()
step = load()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
while step < STEPS:
    g = torch.Generator().manual_seed(step)
    words = torch.randint(0, WORDS, (16,), generator=g)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(words), words.roll(1)).backward()
    optimizer.step()
    step += 1
    if step % SAVE_EVERY == 0:
        torch.save({"model": model.state_dict(), "step": step}, LAST + ".tmp")
        os.replace(LAST + ".tmp", LAST)
