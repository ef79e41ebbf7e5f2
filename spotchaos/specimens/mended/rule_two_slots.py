"""One file is updated in place: two slots in turn, each with its length and a checksum."""

import io
import os
import struct
import zlib

import torch
from torch import nn

TOTAL, PER_EPOCH, BATCH, SAVE_EVERY = 30, 15, 8, 5
SLOTS, SLOT_BYTES = "checkpoints/slots.ckpt", 1 << 16
HEAD = struct.Struct("<QII")  # step, length, checksum of the slot's bytes

torch.manual_seed(0)
x = torch.randn(PER_EPOCH * BATCH, 8)
y = (x[:, 0] > 0).long()

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=TOTAL)


def save(step):
    os.makedirs("checkpoints", exist_ok=True)
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "rng": torch.get_rng_state(),
    }
    held = io.BytesIO()
    torch.save(state, held)
    content = held.getvalue()
    if not os.path.exists(SLOTS):
        with open(SLOTS, "wb") as file:
            file.write(bytes(2 * SLOT_BYTES))
    with open(SLOTS, "r+b") as file:
        file.seek(step // SAVE_EVERY % 2 * SLOT_BYTES)
        file.write(HEAD.pack(step, len(content), zlib.crc32(content)) + content)
        file.flush()
        os.fsync(file.fileno())


def load():
    if not os.path.exists(SLOTS):
        return 0
    newest = None
    with open(SLOTS, "rb") as file:
        for slot in range(2):
            file.seek(slot * SLOT_BYTES)
            head = file.read(HEAD.size)
            if len(head) < HEAD.size:
                continue
            step, length, checksum = HEAD.unpack(head)
            content = file.read(length)
            whole = step and zlib.crc32(content) == checksum
            if whole and (newest is None or step > newest["step"]):
                newest = torch.load(io.BytesIO(content))
    if newest is None:
        return 0
    model.load_state_dict(newest["model"])
    optimizer.load_state_dict(newest["optimizer"])
    scheduler.load_state_dict(newest["scheduler"])
    torch.set_rng_state(newest["rng"])
    return newest["step"]


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
