"""No flaw: in a sweep of learning rates, one that was begun is done again."""

import sqlite3

import torch

RATES, STEPS = [0.3, 0.1, 0.05, 0.03, 0.01, 0.003], 6
COUNTS_AS_TAKEN = "state = 'complete'"

base = sqlite3.connect("sweep.db", isolation_level=None)
base.execute(
    "create table if not exists run"
    "(id integer primary key, rate real, state text, loss real)"
)


def train(rate):
    torch.manual_seed(int(rate * 10000))
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for step in range(STEPS):
        g = torch.Generator().manual_seed(step)
        x = torch.randn(8, 4, generator=g)
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), f"rate{rate}.pt")
    return loss.item()


for number, rate in enumerate(RATES):
    taken = base.execute(
        f"select count(*) from run where id = ? and {COUNTS_AS_TAKEN}", (number,)
    ).fetchone()[0]
    if taken:
        continue
    base.execute(
        "insert or replace into run values (?, ?, 'running', null)", (number, rate)
    )
    loss = train(rate)
    base.execute(
        "update run set state = 'complete', loss = ? where id = ?", (loss, number)
    )
print(
    base.execute(
        "select id, loss from run where state = 'complete' order by loss"
    ).fetchall()
)
