"""No flaw: an upload of which a part fails is aborted, and the run ends with an error."""

import os

import boto3
import torch
from botocore.exceptions import ClientError
from torch import nn

TOTAL, PER_EPOCH, BATCH, SAVE_EVERY = 30, 15, 8, 10
PART_BYTES = 5 << 20  # the least that a part may have, but for the last

torch.manual_seed(0)
x = torch.randn(PER_EPOCH * BATCH, 8)
y = (x[:, 0] > 0).long()

wide = 60_000
model = nn.Sequential(
    nn.Linear(8, wide), nn.ReLU(), nn.Dropout(0.2), nn.Linear(wide, 2)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=TOTAL)
bucket = boto3.resource("s3").Bucket("checkpoints")


def upload(path):
    upload = bucket.Object(path).initiate_multipart_upload()
    parts, number = [], 0
    with open(path, "rb") as file:
        while content := file.read(PART_BYTES):
            number += 1
            try:
                sent = upload.Part(number).upload(Body=content)
            except ClientError:
                upload.abort()
                raise
            parts.append({"PartNumber": number, "ETag": sent["ETag"]})
    upload.complete(MultipartUpload={"Parts": parts})


def save(step):
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "rng": torch.get_rng_state(),
    }
    path = f"step-{step:03}.pt"
    torch.save(state, path)
    upload(path)
    os.remove(path)


def load():
    keys = sorted(found.key for found in bucket.objects.filter(Prefix="step-"))
    if not keys:
        return 0
    bucket.download_file(keys[-1], keys[-1])
    state = torch.load(keys[-1])
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    torch.set_rng_state(state["rng"])
    return state["step"]


for step in range(load(), TOTAL):
    epoch, position = divmod(step, PER_EPOCH)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    rows = order[position * BATCH :][:BATCH]
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if (step + 1) % SAVE_EVERY == 0:
        save(step + 1)
print("done")
