"""Damage: what tests of the gate and of its files do to good bytes."""

import random

import pytest

HOSTILE = (
    b"\x00", b"\x1b[2J\x1b]0;x\x07", b"NaN", b"Infinity", b"1e999", b"9" * 5000, b"-1",
    b"null", b"true", b"[]", b"{}", b'""', b"[" * 2000, b'{"a":' * 500, b"\xff\xfe",
    b"\xe2\x80\xae", b'"\\ud800"', b"18446744073709551616", b"0.1", b'"@everyone #1"',
    b"'", b'"', b"]]", b"=", b"\n[", b"9e9", b"1979-05-27T07:32:00Z", b"[[x]]\n", b"inf",
)  # fmt: skip


@pytest.fixture
def damaged():
    """Return a function that damages bytes in one to three places, by a seed."""

    def damage(good, seed):
        rng = random.Random(seed)
        content = bytearray(good)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            at = rng.randrange(len(content) + 1)
            kind = rng.randrange(6)
            if kind == 0 and content:
                content[at % len(content)] ^= 1 << rng.randrange(8)
            elif kind == 1:
                del content[at:]
            elif kind == 2:
                content[at:at] = rng.choice(HOSTILE)
            elif kind == 3:
                del content[at : at + rng.randrange(1, 40)]
            elif kind == 4:
                content[at : at + rng.randrange(1, 20)] = rng.choice(HOSTILE)
            else:
                other = rng.randrange(len(content) + 1)
                content[at:at] = content[other : other + rng.randrange(1, 200)]
        return bytes(content)

    return damage


VALUES = (
    None, True, False, 0, -1, 2**62, 2**63, 10**40, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "x", "\x1b[2J\x00", "@user closes #12", "9" * 6000, "\ud800",
    [], {}, [None], [[]], {"": None}, [1, 2], ["x"], {"a": 1}, "x" * 100_000,
)  # fmt: skip


@pytest.fixture
def retyped():
    """Return a function that puts a value of any type at one place of a document."""
    import copy

    def change(document, seed):
        rng = random.Random(seed)
        document = copy.deepcopy(document)
        for _ in range(rng.choice((1, 1, 2, 4))):
            node = document
            while True:
                keys = list(node) if isinstance(node, dict) else list(range(len(node)))
                if not keys:
                    break
                key = rng.choice(keys)
                inner = node[key]
                if isinstance(inner, dict | list) and inner and rng.random() < 0.85:
                    node = inner
                    continue
                what = rng.randrange(8)
                if what == 0:
                    del node[key]
                elif what == 1 and isinstance(node, dict):
                    node[rng.choice(("\x1b[2J", "x", "\ud800", "9" * 500))] = inner
                elif what == 2:
                    deep = value = []
                    for _ in range(rng.choice((5, 60, 900))):
                        value = [value]
                    node[key] = value if rng.random() < 0.5 else deep
                else:
                    node[key] = copy.deepcopy(rng.choice(VALUES))
                break
        return document

    return change


def pytest_generate_tests(metafunc):
    """Try 250 mutations of a kind with each run of the suite, and 5,000 in its own."""
    if "mutations" in metafunc.fixturenames:
        metafunc.parametrize(
            "mutations",
            [
                pytest.param(range(250), id="quick"),
                pytest.param(
                    range(5000),
                    id="all",
                    marks=[pytest.mark.slow, pytest.mark.timeout(1800)],
                ),
            ],
        )
