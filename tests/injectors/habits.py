"""A small trainer whose habits are read from a file: how it saves, loads and watches."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import zlib

import torch
from torch import nn

TOTAL, PER_EPOCH, BATCH, SAVE_EVERY = 30, 15, 8, 5
with open("habits") as file:
    HABITS = file.read().split()
NOTICE = "http://169.254.169.254/latest/meta-data/spot/instance-action"
ADVICE = "http://169.254.169.254/latest/meta-data/events/recommendations/rebalance"

PAUSE = threading.Event()
torch.manual_seed(0)
x = torch.randn(PER_EPOCH * BATCH, 8)
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def checkpoints():
    os.makedirs("checkpoints", exist_ok=True)
    found = [f"checkpoints/{n}" for n in os.listdir("checkpoints") if n[-1].isdigit()]
    found.sort(key=number_of)
    if "newest-by-time" in HABITS:
        found.sort(key=os.path.getmtime, reverse=True)  # as `ls -t`
        found.reverse()
    return found


def number_of(path):
    return int(path.rpartition("-")[2])


def save(step):
    parts = [p.detach().clone() for p in model.parameters()]
    momenta = [
        optimizer.state.get(p, {}).get("momentum_buffer") for p in model.parameters()
    ]
    state = {
        "step": step,
        "model": [p.tolist() for p in parts],
        "momenta": [None if m is None else m.tolist() for m in momenta],
        "rng": torch.get_rng_state().numpy().tobytes().hex(),
    }
    content = json.dumps(state).encode()
    if "digest" in HABITS:
        content = b"%08x" % zlib.crc32(content) + content
    old = checkpoints()
    path = f"checkpoints/ckpt-{step}"
    if "deletes-first" in HABITS:
        for one in old:
            os.remove(one)
    try:
        with open(path + ".tmp", "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if "sluggish" in HABITS and stopped:
            PAUSE.wait(60)  # stands for a slow disk
        os.chmod(path + ".tmp", 0o640)
        if os.path.exists(path + ".new"):
            os.remove(path + ".new")
        os.link(path + ".tmp", path + ".new")  # what a refused link shows on
        os.replace(path + ".tmp", path)
        os.remove(path + ".new")
    except OSError:
        if "goes-on" not in HABITS:
            raise
    for one in checkpoints()[:-2]:
        os.remove(one)


def load():
    for path in reversed(checkpoints()):
        with open(path, "rb") as file:
            content = file.read()
        if "digest" in HABITS:
            digest, content = content[:8], content[8:]
            if digest != b"%08x" % zlib.crc32(content):
                continue
        state = json.loads(content)
        with torch.no_grad():
            for p, values, momentum in zip(
                model.parameters(), state["model"], state["momenta"], strict=True
            ):
                p.copy_(torch.tensor(values))
                if momentum is not None:
                    optimizer.state[p]["momentum_buffer"] = torch.tensor(momentum)
        rng = torch.frombuffer(bytearray.fromhex(state["rng"]), dtype=torch.uint8)
        torch.set_rng_state(rng)
        return state["step"]
    return 0


def told(url):
    headers = {}
    try:
        if "tutorial" in HABITS:  # as most of them write it
            import requests

            return requests.get(url, timeout=2).status_code == 200
        if "curls" in HABITS:
            asked = ["curl", "-sf", "--max-time", "2", url]
            return subprocess.run(asked, capture_output=True).returncode == 0
        if "token" in HABITS:
            asked = urllib.request.Request(
                "http://169.254.169.254/latest/api/token",
                method="PUT",
                headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"},
            )
            token = urllib.request.urlopen(asked, timeout=2).read().decode()
            headers["X-aws-ec2-metadata-token"] = token
        asked = urllib.request.Request(url, headers=headers)
        return urllib.request.urlopen(asked, timeout=2).status == 200
    except Exception:
        return False


stopped = []
rarely_s = 0.0
for name in ("TERM", "INT", "HUP", "USR1", "USR2"):
    if f"heeds-{name}" in HABITS:
        signal.signal(
            getattr(signal, f"SIG{name}"), lambda number, frame: stopped.append(number)
        )
    elif name != "INT" and "deaf" in HABITS:
        signal.signal(getattr(signal, f"SIG{name}"), lambda number, frame: None)
if "polls-beside" in HABITS:

    def ask_now_and_then():
        while not PAUSE.wait(3):
            if told(NOTICE):
                stopped.append("notice")

    threading.Thread(target=ask_now_and_then, daemon=True).start()
for word in HABITS:
    how, _, pause_s = word.partition("-every-")
    if how in ("asks-first", "asks-later"):

        def ask_rarely(waits=how == "asks-later", pause_s=pause_s):
            while not (waits and PAUSE.wait(float(pause_s))):
                waits = True
                if told(NOTICE):
                    stopped.append("notice")

        threading.Thread(target=ask_rarely, daemon=True).start()
    elif how == "asks-between-steps":
        rarely_s = float(pause_s)
        asked_at_s = time.monotonic()
for step in range(load(), TOTAL):
    epoch, position = divmod(step, PER_EPOCH)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    rows = order[position * BATCH :][:BATCH]
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if "slow" in HABITS:
        PAUSE.wait(0.1)
    if (step + 1) % SAVE_EVERY == 0 and not ("rare" in HABITS and step > 12):
        save(step + 1)
    if "polls" in HABITS and step % 2 and told(NOTICE):
        stopped.append("notice")
    if rarely_s and time.monotonic() - asked_at_s > rarely_s:
        asked_at_s = time.monotonic()
        if told(NOTICE):
            stopped.append("notice")
    if "heeds-advice" in HABITS and step % 2 and told(ADVICE):
        stopped.append("advice")
    if stopped:
        save(step + 1)
        sys.exit(143)
