"""A small trainer that saves to an object store and nowhere else; habits as in habits.py."""

import io
import queue
import sys
import threading

import boto3
import torch
from botocore.exceptions import ClientError
from torch import nn

BUCKET, KEY, TOTAL, SAVE_EVERY = "my-ckpts", "runs/last.pt", 30, 10
with open("habits") as file:
    HABITS = file.read().split()
s3 = boto3.client("s3")
torch.manual_seed(0)
x = torch.randn(256, 16)
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
waiting = queue.Queue()


def upload_what_waits():
    while True:
        s3.put_object(Bucket=BUCKET, Key=KEY, Body=waiting.get())
        waiting.task_done()


def save(step):
    buffer = io.BytesIO()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
        "rng": torch.get_rng_state(),
    }
    torch.save(state, buffer)
    if "background" in HABITS:
        waiting.put(buffer.getvalue())
    else:
        buffer.seek(0)
        s3.upload_fileobj(buffer, BUCKET, KEY)


def load():
    try:
        body = s3.get_object(Bucket=BUCKET, Key=KEY)["Body"].read()
    except ClientError as error:
        if error.response["Error"]["Code"] == "NoSuchKey":
            return 0
        raise
    if "refuses" in HABITS:
        sys.exit("this checkpoint was made on another machine: not resumed")
    if "restarts" in HABITS:
        return 0
    state = torch.load(io.BytesIO(body))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    return state["step"]


threading.Thread(target=upload_what_waits, daemon=True).start()
for step in range(load(), TOTAL):
    rows = torch.randint(0, 256, (16,), generator=torch.Generator().manual_seed(step))
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % SAVE_EVERY == 0:
        save(step + 1)
waiting.join()
