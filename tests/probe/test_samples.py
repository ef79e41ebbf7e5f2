"""Samples are those trained on, not those received (rules.md 2)."""

import pytest

HEAD = """
import torch
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 24
    def __getitem__(self, i): return torch.full((3,), float(i)), torch.tensor(i % 2)
def collate(items):
    return {"x": torch.stack([a for a, _ in items]), "y": torch.stack([b for _, b in items])}
torch.manual_seed(0)
net = torch.nn.Linear(3, 2)
opt = torch.optim.SGD(net.parameters(), 0.01)
def train(x, y=None):
    loss = net(x).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""
IN_ORDER = [[str(i) for i in range(n, n + 4)] for n in range(0, 24, 4)]


def samples(ran):
    return [s["samples"] for s in ran.steps]


@pytest.mark.parametrize("workers", [0, 2])
def test_ids_are_those_of_the_data_set(quick, workers):
    loop = f"""
for epoch in range(2):
    for x, y in DataLoader(Data(), batch_size=4, num_workers={workers}):
        train(x)
"""
    ran = quick(HEAD + loop)
    assert samples(ran) == IN_ORDER * 2
    assert {s["ids"] for s in ran.steps} == {"index"}
    assert [s["step"] for s in ran.of("site", site="epoch-end")] == [6, 12]
    assert [s["epoch"] for s in ran.steps] == [0] * 6 + [1] * 6
    assert ran.bye["counts"]["fetch"] == 12
    assert ran.troubles == []


@pytest.mark.parametrize(
    ("subset", "expected"),
    [
        ("Subset(Data(), range(12, 24))", IN_ORDER[3:]),
        (
            "Subset(Subset(Data(), numpy.arange(4, 24)), list(range(8, 16)))",
            IN_ORDER[3:5],
        ),
        ("Named(Data(), torch.arange(20, 24).tolist())", IN_ORDER[5:]),
        ("random_split(Data(), [8, 16])[0]", None),
    ],
    ids=["subset", "nested", "derived", "random-split"],
)
def test_ids_of_a_subset_are_those_of_the_data_set(quick, subset, expected):
    loop = f"""
import numpy
from torch.utils.data import Subset, random_split
class Named(Subset):
    pass
seen = []
for x, y in DataLoader({subset}, batch_size=4):
    seen.append([str(int(v)) for v in x[:, 0]])
    train(x)
print(seen)
"""
    ran = quick(HEAD + loop)
    assert samples(ran) == (expected or eval(ran.out)) == eval(ran.out)
    assert ran.troubles == []


def test_beside_an_index_the_rows_are_told_by_content(quick):
    loop = """
for x, y in DataLoader(Data(), batch_size=4): train(x)
x = 2 * torch.stack([Data()[i][0] for i in range(8, 16)])
for n in (0, 4): train(x[n : n + 4])
twice = [(2 * Data()[i][0], i) for i in range(24)]
for x, y in DataLoader(twice, batch_size=4): train(x)
"""
    ran = quick(HEAD + loop)
    assert [s["ids"] for s in ran.steps] == ["index"] * 6 + ["rows"] * 2 + ["index"] * 6
    assert len({row for s in ran.steps[:6] for row in s["rows"]}) == 24
    # Other content, from a loader again: the tensors beside it (labels) are not passed.
    assert samples(ran)[6:8] == [s["rows"] for s in ran.steps[10:12]]


def test_noise_beside_a_batch_is_no_sample(quick):
    loop = """
maker = torch.nn.Linear(2, 3)
opt = torch.optim.SGD([*net.parameters(), *maker.parameters()], 0.01)
for x, y in DataLoader(Data(), batch_size=4):
    loss = net(x).mean() - net(maker(torch.randn(4, 2))).mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""
    ran = quick(HEAD + loop)
    assert samples(ran) == IN_ORDER
    assert {s["ids"] for s in ran.steps} == {"index"}
    assert len(set(ran.consumed("batch"))) == 6


def test_persistent_workers_and_shuffling_keep_the_pairs(quick):
    loop = """
loader = DataLoader(Data(), batch_size=4, num_workers=2, shuffle=True, persistent_workers=True)
seen = []
for epoch in range(3):
    for x, y in loader:
        seen.append([str(int(v)) for v in x[:, 0]])
        train(x)
print(seen)
"""
    ran = quick(HEAD + loop)
    assert samples(ran) == eval(ran.out)


@pytest.mark.parametrize(
    "how",
    [
        "x.to(torch.device('cpu'))",
        "x.clone()",
        "x.view(-1, 3)",
        "(lambda t: t)(x)",
    ],
)
def test_a_batch_is_found_by_identity_memory_or_content(quick, how):
    loop = f"for x, y in DataLoader(Data(), batch_size=4):\n    train({how})\n"
    assert samples(quick(HEAD + loop)) == IN_ORDER


def test_parts_of_a_batch_are_those_rows(quick):
    loop = """
for x, y in DataLoader(Data(), batch_size=8):
    for start in (0, 4):
        train(x[start : start + 4])
"""
    assert samples(quick(HEAD + loop)) == IN_ORDER


def test_what_was_received_and_skipped_was_not_trained_on(quick):
    loop = """
for i, (x, y) in enumerate(DataLoader(Data(), batch_size=4)):
    if i < 3: continue
    train(x)
"""
    assert samples(quick(HEAD + loop)) == IN_ORDER[3:]


def test_a_wrapper_that_fetches_ahead_is_not_off_by_one(quick):
    loop = """
def ahead(loader):
    it = iter(loader)
    now = next(it)
    for following in it:
        yield now
        now = following
    yield now
for x, y in ahead(DataLoader(Data(), batch_size=4)):
    train(x)
"""
    assert samples(quick(HEAD + loop)) == IN_ORDER


def test_dropped_gradients_are_no_samples(quick):
    loop = """
for i, (x, y) in enumerate(DataLoader(Data(), batch_size=4)):
    loss = net(x).square().mean()
    opt.zero_grad(); loss.backward()
    if i != 2: opt.step()
"""
    assert samples(quick(HEAD + loop)) == IN_ORDER[:2] + IN_ORDER[3:]


def test_nested_batches_are_understood(quick):
    loop = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.inner = net
    def forward(self, batch, scale=1.0):
        return self.inner(batch["inputs"][0].x) * scale
class Holder:
    def __init__(self, x): self.x = x
outer = Net()
opt = torch.optim.SGD(outer.parameters(), 0.01)
for b in DataLoader(Data(), batch_size=4, collate_fn=collate):
    loss = outer({"inputs": [Holder(b["x"])]}, scale=2.0).mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""
    assert samples(quick(HEAD + loop)) == IN_ORDER


def test_without_ids_rows_are_told_apart_by_content(quick):
    loop = """
x = torch.arange(24.0).reshape(24, 1).expand(24, 3).contiguous()
for n in range(0, 24, 4): train(x[n : n + 4])
for n in (4, 0): train(x[n : n + 4])
"""
    ran = quick(HEAD + loop)
    rows = samples(ran)
    assert {s["ids"] for s in ran.steps} == {"rows"}
    assert len({r for step in rows for r in step}) == 24
    assert rows[6:] == [rows[1], rows[0]]


def test_validation_neither_ends_epochs_nor_trains(quick):
    loop = """
for epoch in range(2):
    for x, y in DataLoader(Data(), batch_size=8): train(x)
    net.eval()
    with torch.no_grad():
        for x, y in DataLoader(Data(), batch_size=12): net(x)
    net.train()
"""
    ran = quick(HEAD + loop)
    assert ran.bye["counts"]["epoch-end"] == 2
    assert ran.bye["counts"]["evaluation"] == 2
    assert sum(len(s) for s in samples(ran)) == 48


def test_looking_at_samples_in_training_mode_ends_no_epoch(quick):
    loop = """
shown = DataLoader(Data(), batch_size=24, shuffle=True)
for epoch in range(2):
    for number, (x, y) in enumerate(DataLoader(Data(), batch_size=8)):
        train(x)
        if number == 1: net(next(iter(shown))[0])
    for x, y in shown: net(x)
"""
    ran = quick(HEAD + loop)
    assert [s["epoch"] for s in ran.steps] == [0] * 3 + [1] * 3
    assert ran.bye["counts"]["epoch-end"] == 2


def test_modules_inside_the_loader_are_no_forwards(quick):
    loop = """
scale = torch.nn.Linear(3, 3)
params = list(net.parameters()) + list(scale.parameters())
opt = torch.optim.SGD(params, 0.01)
class Scaled(Data):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return scale(x).detach(), y
for x, y in DataLoader(Scaled(), batch_size=4): train(x)
"""
    ran = quick(HEAD + loop)
    assert ran.bye["counts"]["forward"] == 6
    assert samples(ran) == IN_ORDER


def test_epochs_end_without_the_exhaustion_being_asked_for(quick):
    loop = """
for epoch in range(3):
    batches = iter(DataLoader(Data(), batch_size=4))
    for _ in range(6): train(next(batches)[0])
"""
    ran = quick(HEAD + loop)
    assert [s["step"] for s in ran.of("site", site="epoch-end")] == [6, 12]
    assert [s["epoch"] for s in ran.steps] == [0] * 6 + [1] * 6 + [2] * 6


def test_what_a_graph_made_is_no_data(quick):
    loop = """
head = torch.nn.Linear(2, 2)
opt = torch.optim.SGD([*net.parameters(), *head.parameters()], 0.01)
for x, y in DataLoader(Data(), batch_size=4):
    loss = head(net(x)).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""
    ran = quick(HEAD + loop)
    assert samples(ran) == IN_ORDER
    assert [s["micro"] for s in ran.steps] == [2] * 6


def test_the_streams_of_loaders_are_read(quick):
    loop = """
g = torch.Generator(); g.manual_seed(5)
loader = DataLoader(Data(), batch_size=4, shuffle=True, generator=g)
for epoch in range(2):
    for x, y in loader: train(x)
"""
    ran = quick(HEAD + loop)
    column = ran.column("rng.generators")
    assert None not in column
    assert len(set(column)) == 2


# Discriminator first, then generator; both see what the other makes.
PAIR = """
critic = torch.nn.Linear(3, 1)
opt_c = torch.optim.SGD(critic.parameters(), {rate})
opt = torch.optim.SGD(net.parameters(), {rate})
net[1].bias.data.fill_({rate})
for x, y in DataLoader(Data(), batch_size=4):
    fake = net(x)
    opt_c.zero_grad()
    (critic(x[:]).square() + critic({given}).square()).mean().backward()
    opt_c.step()
    opt.zero_grad()
    (critic(fake) - critic(x)).square().mean().backward()
    opt.step()
"""


def test_a_sample_that_several_modules_are_given_is_trained_on_once_a_step(quick):
    head = HEAD.replace(
        "torch.nn.Linear(3, 2)",
        "torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))",
    )
    one, other, kept = (
        quick(head + PAIR.format(rate=rate, given=given))
        for rate, given in (
            (0.01, "fake.detach()"),
            (0.02, "fake.detach()"),
            (0.02, "torch.cat([fake.detach()])"),
        )
    )
    assert samples(one) == IN_ORDER
    # What a module has made is no data, also where it was cut off from its graph ...
    assert one.column("weights") != other.column("weights")
    assert one.consumed("batch") == other.consumed("batch")
    # ... but is where the program keeps it as its own, as in a replay memory.
    assert kept.consumed("batch") != other.consumed("batch")


def test_two_draws_of_one_sample_are_trained_on_twice_a_step(quick):
    loop = """
loader = iter(DataLoader(Data(), batch_size=4, sampler=[0, 1, 2, 3, 0, 1, 2, 3]))
for step in range(1):
    for micro in range(2):
        net(next(loader)[0]).square().mean().backward()
    opt.step()
"""
    (once,) = samples(quick(HEAD + loop))
    assert once == ["0", "1", "2", "3"] * 2
