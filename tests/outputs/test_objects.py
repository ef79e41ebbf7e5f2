"""Objects in a store are outputs as well: which are there, how long, what they say."""

from spotchaos.model import OutputsFound, Stored
from spotchaos.outputs.objects import object_differences, with_objects

NOTHING = OutputsFound(sizes={}, records=0, written=None, ahead={}, is_alone=True)
TEXTS = {"b/0": '{"v": 10}', "b/1": '{"v": 20}'}


def stored(**changes):
    texts = {**TEXTS, **changes}
    texts = {path: text for path, text in texts.items() if text is not None}
    return Stored({p: len(t) for p, t in texts.items()}, texts, ())


def kinds(seen):
    found = with_objects(NOTHING, [stored(), stored()])
    return [one.kind for one in object_differences(found, seen)]


def test_the_same_objects_are_no_difference():
    assert kinds(stored()) == []


def test_an_object_that_is_not_there_is_missing():
    assert kinds(stored(**{"b/1": None})) == ["missing"]


def test_an_object_that_breaks_off_is_torn_and_one_with_another_text_differs():
    assert kinds(stored(**{"b/1": '{"v": 2'})) == ["torn"]
    assert kinds(stored(**{"b/1": '{"v": 3}'})) == ["differ"]
    assert kinds(stored(**{"b/1": '{"v": 21}'})) == ["differ"]


def test_what_two_runs_store_differently_is_not_compared():
    found = with_objects(NOTHING, [stored(**{"b/2": "1"}), stored(**{"b/2": "22"})])
    assert list(found.objects) == ["b/0", "b/1"]
    assert found.counted == "2 objects in the store"
