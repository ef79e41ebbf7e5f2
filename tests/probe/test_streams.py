"""Streams are read without being moved, and what comes next is known."""

import random
import sys
import types

import numpy as np
import pytest
import torch

from spotchaos.probe import exits
from spotchaos.probe.fingerprint import ALGORITHM, Digest, reduced, tensor_digest
from spotchaos.probe.reach import own_modules
from spotchaos.probe.rng_streams import read_streams
from spotchaos.probe.session import SESSION

DRAWS = {
    "rng.python": random.random,  # noqa: TID251 - the stream under test
    "rng.numpy": np.random.random_sample,
    "rng.torch": lambda: torch.rand(1, dtype=torch.float64).item(),
}


class Lazy(types.ModuleType):
    """A module that would be imported by the first question that it is asked."""

    def __getattr__(self, name):
        raise ImportError(f"{self.__name__} cannot be imported here, for {name}")


def test_a_lazy_module_is_not_asked_whose_it_is(monkeypatch, tmp_path):
    own = types.ModuleType("own")
    own.__file__ = str(tmp_path / "own.py")
    monkeypatch.setitem(sys.modules, "own", own)
    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    monkeypatch.setattr(SESSION, "orders", {"folder": str(tmp_path)})
    assert own in list(own_modules())
    assert "lazy" not in [name for name, _ in exits._modules()]


def test_reading_moves_nothing():
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = [draw() for draw in DRAWS.values()]
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    for _ in range(3):
        read_streams([])
    assert [draw() for draw in DRAWS.values()] == expected


def test_a_moved_stream_keeps_its_block_or_has_the_next():
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    before = read_streams([])
    crossed = dict.fromkeys(DRAWS, 0)
    for _ in range(700):
        for draw in DRAWS.values():
            draw()
        after = read_streams([])
        for name in DRAWS:
            (block, following, position), now = before[name], after[name]
            if now[0] == block:
                assert now[2] == position + 2, name  # a double takes two words
            else:
                assert now[0] == following, name
                crossed[name] += 1
        before = after
    assert all(count >= 2 for count in crossed.values())


def test_a_normal_that_waits_is_part_of_the_stream():
    random.seed(3)
    plain = read_streams([])["rng.python"]
    random.gauss(0, 1)
    waiting = read_streams([])["rng.python"]
    assert waiting[0].split("+")[0] == plain[0].split("+")[0] or "+" in waiting[0]
    assert "+" in waiting[0]
    random.gauss(0, 1)
    assert "+" not in read_streams([])["rng.python"][0]


def test_generators_are_streams_too():
    generator = torch.Generator()
    generator.manual_seed(5)
    before = read_streams([generator])["rng.generators"]
    torch.rand(1, generator=generator)
    assert read_streams([generator])["rng.generators"] != before


MAKERS = {
    "default_rng": "numpy.random.default_rng(5)",
    "mt19937": "numpy.random.Generator(numpy.random.MT19937(5))",
    "RandomState": "numpy.random.RandomState(5)",
    "Random": "random.Random(5)",
    "torch": "torch.Generator().manual_seed(5)",
}
LOOP = """
import random, numpy, torch
torch.manual_seed(0)
class Data:
    def __init__(self): self.rng = {make}
def draw(rng):
    if hasattr(rng, "initial_seed"): return float(torch.rand(1, generator=rng))
    return float(rng.random_sample() if hasattr(rng, "random_sample") else rng.random())
def main(moved):
    data = Data(); net = torch.nn.Linear(2, 2); opt = torch.optim.SGD(net.parameters(), 0.1)
    drawn = []
    for step in range(3):
        drawn += [draw(data.rng) for _ in range(moved)]
        opt.zero_grad(); net(torch.ones(1, 2)).sum().backward(); opt.step()
    return drawn
"""


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_generator_of_the_programs_own_is_followed_and_not_moved(quick, make):
    loop = LOOP.format(make=make)
    ran = quick(loop + "print(main(2))")
    column = ran.column("rng.own")
    assert len(set(column)) == 3
    assert None not in column
    assert len({*quick(loop + "main(0)").column("rng.own")}) == 1
    names = {"numpy": np, "random": random, "torch": torch}
    exec(loop, names)
    assert ran.out.strip().endswith(str(names["main"](2)))
    assert not ran.troubles


PLACES = {
    "a name of the script": "rng = torch.Generator()",
    "a closure": """
def made(rng): return lambda: rng
rng = made(torch.Generator())""",
    "an object in a list of a library's object": """
import argparse
class Noise:
    def __init__(self): self.rng = torch.Generator()
args = argparse.Namespace(); rngs = [{"noise": Noise()}]""",
    "a module within a library's": """
class Noise(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.rng = torch.Generator()
net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(Noise()))""",
    "a loader's data set": """
class Data(torch.utils.data.Dataset):
    def __init__(self): self.rng = torch.Generator()
    def __len__(self): return 2
loader = torch.utils.data.DataLoader(Data())
del Data""",
    "a class": """
class Noise: rng = torch.Generator()""",
    "a generator function": """
def batches(rng):
    while True: yield torch.rand(1, generator=rng)
stream = batches(torch.Generator()); next(stream)""",
    "a module beside the script": """
with open("noise.py", "w") as file: file.write("import torch; rng = torch.Generator()")
import sys; sys.path.insert(0, ""); import noise; torch.Generator""",
}


@pytest.mark.parametrize("keeps", PLACES.values(), ids=PLACES)
def test_a_generator_of_torch_is_found_wherever_the_program_keeps_it(quick, keeps):
    loop = """
p = torch.nn.Linear(2, 2); opt = torch.optim.SGD(p.parameters(), 0.1)
for step in range(2): opt.zero_grad(); p(torch.ones(1, 2)).sum().backward(); opt.step()
"""
    ran = quick("import torch\n" + keeps + loop)
    assert None not in ran.column("rng.own")


def test_looking_for_generators_keeps_nothing_alive_that_a_function_lets_go(quick):
    loop = """
import torch, weakref
def train():
    rng = torch.Generator()
    class Held: pass
    held = Held(); gone = weakref.ref(held)
    kept = locals()
    net = torch.nn.Linear(2, 2); opt = torch.optim.SGD(net.parameters(), 0.1)
    def step(more):
        opt.zero_grad(); net(torch.ones(1, 2)).sum().backward(); opt.step(); return gone
    def inner():
        mine = Held(); there = weakref.ref(mine); step(mine)
        del mine
        return there()
    print(inner(), "held" in kept)
    step(rng)
train()
"""
    ran = quick(loop)
    assert None not in ran.column("rng.own")
    assert ran.out.split() == ["None", "True"]


def test_looking_for_generators_wakes_nothing_up(quick):
    loop = """
import torch
class Asleep:
    __slots__ = ()
    def __getattr__(self, name): raise RuntimeError("woken up")
    @property
    def __class__(self): raise RuntimeError("woken up")
Asleep.__module__ = "library"
asleep, rng = Asleep(), torch.Generator()
p = torch.nn.Linear(2, 2); opt = torch.optim.SGD(p.parameters(), 0.1)
for step in range(2): opt.zero_grad(); p(torch.ones(1, 2)).sum().backward(); opt.step()
"""
    ran = quick(loop)
    assert not ran.troubles
    assert None not in ran.column("rng.own")


def test_a_loaders_generator_is_not_the_programs_own_as_well(quick):
    loop = """
import torch
rng = torch.Generator()
loader = torch.utils.data.DataLoader(range(4), generator=rng, shuffle=True)
p = torch.nn.Linear(1, 2); opt = torch.optim.SGD(p.parameters(), 0.1)
for x in loader: opt.zero_grad(); p(x[:, None] * 1.0).sum().backward(); opt.step()
"""
    ran = quick(loop)
    assert {*ran.column("rng.own")} == {None}
    assert None not in ran.column("rng.generators")


# As sympy does, which torch imports: at the top of a module and in a class, unseeded.
LIBRARY = """
import os, sys
os.makedirs("site-packages", exist_ok=True)
with open("site-packages/symbols.py", "w") as file:
    file.write("import random; rng = random.Random()\\nclass Dummy: own = random.Random()")
sys.path.insert(0, os.path.abspath("site-packages"))
import symbols
"""


def test_generators_that_a_library_keeps_are_not_followed(quick):
    program = LOOP.format(make=MAKERS["Random"]) + "main(2)"
    alone = quick(program).column("rng.own")
    assert quick(LIBRARY + program).column("rng.own") == alone


def test_no_generator_is_looked_for_that_the_code_does_not_name(quick):
    loop = LOOP.format(make="random._inst")
    ran = quick(loop + "print(main(1))")
    assert {*ran.column("rng.own")} == {None}


def test_the_reduction_depends_on_order_place_and_each_bit():
    values = torch.arange(3_000_000, dtype=torch.float32)
    first = reduced(values).tolist()
    assert reduced(values.clone()).tolist() == first
    swapped = values.clone()
    swapped[[7, 2_500_000]] = swapped[[2_500_000, 7]]
    negated = values.clone()
    negated[[11, 13]] *= -1
    shifted = values.roll(2)
    others = [reduced(t).tolist() for t in (swapped, negated, shifted, values[:-1])]
    assert len({tuple(o) for o in [first, *others]}) == 5


def test_layout_does_not_matter_and_dtype_does():
    values = torch.rand(4, 3, 8, 8)
    for algorithm in ("xxh3_128", "torch_int64"):
        ALGORITHM.choose(algorithm)
        digest = tensor_digest(values)
        assert tensor_digest(values.to(memory_format=torch.channels_last)) == digest
        assert tensor_digest(values.half()) != digest
        assert tensor_digest(values.reshape(4, 3, 64)) != digest
        assert tensor_digest(values.transpose(2, 3)) != digest
        large = torch.rand(100_001)
        assert tensor_digest(large) == tensor_digest(large.clone())
        assert tensor_digest(large) != tensor_digest(large.flip(0))
    ALGORITHM.choose(None)


def test_every_kind_of_tensor_has_a_digest():
    ALGORITHM.choose(None)
    dense = torch.rand(4, 4)
    kinds = [
        dense,
        dense.to_sparse(),
        dense.bfloat16(),
        dense > 0.5,
        torch.complex(dense, dense).conj(),
        torch.empty(0),
        torch.nn.Parameter(dense),
        dense.t()[::2],
        torch.empty(2, device="meta"),
    ]
    digests = [tensor_digest(t) for t in kinds]
    assert digests[0] == digests[6]
    assert len(set(digests)) == len(kinds) - 1
    digest = Digest()
    digest.tensor(dense)
    assert digest.hex() == digests[0]
