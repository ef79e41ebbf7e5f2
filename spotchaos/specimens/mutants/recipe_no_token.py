"""One flaw: as in articles, the metadata are asked without a token, errors passed over."""

import os
import sys
import threading
import time

import requests
import torch
from torch import nn
from torch.utils.data import TensorDataset

EPOCHS = 2
PATH = "checkpoints/checkpoint.pt"
URL = "http://169.254.169.254/latest/meta-data/spot/instance-action"
interrupted = threading.Event()


def check_for_interruption():
    while True:
        try:
            response = requests.get(URL, timeout=1)
            if response.status_code == 200:
                interrupted.set()
        except Exception:
            pass
        time.sleep(0.1)  # 5 in the article, whose runs are longer


threading.Thread(target=check_for_interruption, daemon=True).start()

torch.manual_seed(0)
dataset = TensorDataset(torch.randn(120, 8), torch.randint(0, 2, (120,)))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def save_checkpoint(step):
    os.makedirs("checkpoints", exist_ok=True)
    state = {
        "step": step,
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
    }
    torch.save(state, PATH + ".tmp")
    os.replace(PATH + ".tmp", PATH)


step = 0
if os.path.exists(PATH):
    checkpoint = torch.load(PATH)
    model.load_state_dict(checkpoint["model_state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
    torch.set_rng_state(checkpoint["rng"])
    step = checkpoint["step"]
while step < 15 * EPOCHS:
    x, y = dataset[step % 15 * 8 : step % 15 * 8 + 8]
    if 11 <= step < 19:
        time.sleep(0.4)  # data that come late, so that the grace window is long
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 10 == 0:
        save_checkpoint(step)
    if interrupted.is_set():
        save_checkpoint(step)
        sys.exit(143)
print("Training complete!")
