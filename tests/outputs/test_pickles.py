"""Pickles are compared by what they hold, and nothing that they name is run."""

import collections
import io
import os
import pickle

import pytest

from spotchaos.outputs.pickles import Unreadable, pickle_table
from spotchaos.outputs.tables import TornError


class Model:
    def __init__(self, rate):
        self.rate = rate
        self.names = ["a", "b"]


def rows(content):
    table = pickle_table("", lambda: io.BytesIO(content), len(content))
    return [(place, table.decode(raw)) for place, raw in table.rows()]


def held(value, protocol=4):
    return rows(pickle.dumps(value, protocol))


VALUES = [
    {"weights": [1.5, 2.5], "step": 3, "name": "x"},
    (Model(0.5), 12),
    collections.OrderedDict(a=1, b={2, 3}),
    [b"bytes", None, True, 10**30, 1 + 2j],
    collections.Counter("spot"),
]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_was_loaded_and_saved_again_is_the_same(value, protocol):
    again = pickle.loads(pickle.dumps(value))
    assert held(value, protocol) == held(again, protocol)


def test_shared_strings_make_other_bytes_and_no_other_content():
    shared = str(b"name", "ascii")
    apart = [shared, str(b"name", "ascii")]
    assert pickle.dumps([shared, shared]) != pickle.dumps(apart)
    assert held([shared, shared]) == held(apart)


def test_another_value_is_found_where_it_is():
    [(_, first)], [(_, second)] = held(Model(0.5)), held(Model(0.25))
    assert {n for n in first if first[n] != second[n]} == {".['rate']"}


def test_a_pickle_that_breaks_off_is_torn():
    content = pickle.dumps(VALUES[0], 4)
    with pytest.raises(TornError):
        rows(content[: len(content) // 2])


class Evil:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-pickle",)


def test_nothing_that_a_pickle_calls_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [(_, found)] = held(Evil())
    assert "mkdir" in str(found)
    assert not list(tmp_path.iterdir())


def test_what_is_no_pickle_after_all_is_unreadable():
    with pytest.raises((Unreadable, TornError)):
        rows(b"\x80\x04\xff\xfe\xfd")
