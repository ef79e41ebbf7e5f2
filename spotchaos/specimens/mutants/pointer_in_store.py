"""One flaw: the pointer moves although the upload has failed."""

import boto3
import torch
from boto3.exceptions import S3UploadFailedError
from torch import nn

TOTAL, PER_EPOCH, BATCH, SAVE_EVERY = 30, 15, 8, 10

torch.manual_seed(0)
x = torch.randn(PER_EPOCH * BATCH, 8)
y = (x[:, 0] > 0).long()

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=TOTAL)
bucket = boto3.resource("s3").Bucket("checkpoints")


def save(step):
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "rng": torch.get_rng_state(),
    }
    key = f"step-{step:03}.pt"
    torch.save(state, key)
    try:
        bucket.upload_file(key, key)
    except S3UploadFailedError as error:
        print(error)
    bucket.put_object(Key="latest", Body=key.encode())


def load():
    if not any(bucket.objects.filter(Prefix="latest")):
        return 0
    key = bucket.Object("latest").get()["Body"].read().decode()
    bucket.download_file(key, key)
    state = torch.load(key)
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
