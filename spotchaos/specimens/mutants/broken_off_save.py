"""One flaw: Ctrl-C within a save leaves neither the new checkpoint nor the old one."""

import torch

STEPS, SAVE_EVERY = 30, 5
FIRST, LAST = "first.pt", "last.pt"

torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def load():
    for path in (LAST, FIRST):
        try:
            saved = torch.load(path)
        except (OSError, RuntimeError, EOFError):
            continue
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        return saved["step"]
    return 0


def save(step):
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
    }
    if step == SAVE_EVERY:
        torch.save(state, FIRST)
    with open(LAST, "wb") as file:
        torch.save(state, file)


step = load()
while step < STEPS:
    g = torch.Generator().manual_seed(step)
    x = torch.randn(6, 64, generator=g)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), x).backward()
    optimizer.step()
    step += 1
    if step % SAVE_EVERY == 0:
        save(step)
