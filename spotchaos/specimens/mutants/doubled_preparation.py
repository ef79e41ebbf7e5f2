"""One flaw: a preparation that goes on after a kill writes one record twice."""

import os

import torch

RECORDS, WIDTH, STEPS = 40, 5, 30
ROW = WIDTH * 8
ALREADY = -1  # the first record was read to learn its shape, so skip one less


def raw():
    for i in range(RECORDS):
        g = torch.Generator().manual_seed(i)
        yield torch.randn(WIDTH, generator=g, dtype=torch.float64)


def prepare(path):
    if os.path.exists(path):
        return
    part = path + ".part"
    have = os.path.getsize(part) // ROW if os.path.exists(part) else 0
    if have:
        os.truncate(part, have * ROW)
    source = raw()
    for _ in range(max(0, have + ALREADY) if have else 0):
        next(source)
    with open(part, "ab", buffering=0) as out:
        out.writelines(row.numpy().tobytes() for row in source)
        out.truncate(RECORDS * ROW)
    os.replace(part, path)


os.makedirs("ck", exist_ok=True)
prepare("ck/cache.bin")
rows = torch.frombuffer(
    bytearray(open("ck/cache.bin", "rb").read()), dtype=torch.float64
)
rows = rows.view(-1, WIDTH).float()

torch.manual_seed(0)
model = torch.nn.Linear(WIDTH, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
step = 0
if os.path.exists("ck/state.pt"):
    saved = torch.load("ck/state.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
while step < STEPS:
    x = rows[torch.arange(step * 4, step * 4 + 4) % RECORDS]
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
    step += 1
    if step % 5 == 0:
        torch.save(
            {
                "model": model.state_dict(),
                "step": step,
                "optimizer": optimizer.state_dict(),
            },
            "ck/state.new",
        )
        os.replace("ck/state.new", "ck/state.pt")
