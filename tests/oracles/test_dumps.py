"""Which tensor differs, in how many elements, and by how many units in the last place."""

from __future__ import annotations

import json
import math
import struct

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spotchaos.oracles import dumps
from spotchaos.oracles.dumps import compare_dumps, distance, ulp_distance

NUMPY = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "int64": "<i8",
    "bool": "|b1",
}


def write(folder, component, tensors, *, dtype="float32", pid=10, token="aa", raw=None):
    """Write a dump as the probe does."""
    folder.mkdir(exist_ok=True)
    base = folder / f"{pid}-{token}.dump-3-{component}"
    entries, content = [], b""
    for name, values in tensors.items():
        data = raw or np.asarray(values, NUMPY.get(dtype, "<u2")).tobytes()
        entries.append(
            {
                "name": name,
                "dtype": NUMPY.get(dtype, "<u2"),
                "torch_dtype": dtype,
                "shape": list(np.shape(values)),
                "offset": len(content),
                "bytes": len(data),
            }
        )
        content += data
    base.with_name(base.name + ".bin").write_bytes(content)
    index = {
        "step": 3,
        "component": component,
        "data": base.name + ".bin",
        "tensors": entries,
    }
    base.with_name(base.name + ".json").write_text(json.dumps(index))


def pair(tmp_path, component, ours, theirs, **options):
    write(tmp_path / "a", component, ours, **options)
    write(tmp_path / "b", component, theirs, token="bb", **options)
    return compare_dumps(tmp_path / "a", tmp_path / "b")


def test_equal_dumps_have_no_first_tensor(tmp_path):
    assert pair(tmp_path, "weights", {"w": [1.0, 2.0]}, {"w": [1.0, 2.0]}) is None


def test_the_first_tensor_that_differs_is_named_with_count_and_distance(tmp_path):
    up = math.nextafter
    ours = {"0.weight": [1.0, 2.0], "0.bias": [1.0, 2.0, 3.0]}
    theirs = {
        "0.weight": [1.0, 2.0],
        "0.bias": [up(1.0, 2), 2.0, up(up(3.0, 4), 4)],
    }
    found = pair(tmp_path, "gradients", ours, theirs, dtype="float64")
    assert found == ("0.bias", 2, 2)


@given(data=st.data(), piece=st.integers(1, 70))
def test_a_tensor_that_is_read_in_pieces_is_the_same_tensor(
    tmp_path_factory, data, piece
):
    floats = st.floats(-8, 8, width=32)
    ours = data.draw(st.lists(floats, min_size=1, max_size=30))
    theirs = data.draw(st.lists(floats, min_size=len(ours), max_size=len(ours)))
    folder = tmp_path_factory.mktemp("pieces")
    whole = pair(folder, "weights", {"w": ours}, {"w": theirs})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dumps, "_PIECE", piece)
        assert compare_dumps(folder / "a", folder / "b") == whole


def test_a_distance_is_that_of_all_tensors_together(tmp_path):
    up = math.nextafter
    ours = {"a": [1.0, 2.0], "b": [3.0], "c": [5.0]}
    theirs = {"a": [up(1.0, 2), 2.0], "b": [up(up(3.0, 4), 4)], "c": [5.0]}
    pair(tmp_path, "weights", ours, theirs, dtype="float64")
    assert distance(tmp_path / "a", tmp_path / "b") == (2, 2)
    assert distance(tmp_path / "a", tmp_path / "a") == (0, 0)


def test_a_distance_is_unknown_beside_a_tensor_that_has_none(tmp_path):
    ours, theirs = {"a": [1.0], "b": [1.0, 2.0]}, {"a": [2.0], "b": [math.nan, 2.0]}
    pair(tmp_path, "weights", ours, theirs)
    assert distance(tmp_path / "a", tmp_path / "b") == (2, None)


def test_tensors_are_matched_by_name_and_not_by_position(tmp_path):
    ours, theirs = {"a": [1.0], "b": [2.0]}, {"b": [2.0], "a": [1.0]}
    assert pair(tmp_path, "weights", ours, theirs) is None


def test_weights_come_before_gradients_whatever_the_names_of_the_files(tmp_path):
    for name, value in (("a", 1.0), ("b", 2.0)):
        for component in ("gradients", "weights"):
            write(tmp_path / name, component, {f"of {component}": [value]})
    label, _, _ = compare_dumps(tmp_path / "a", tmp_path / "b")
    assert label == "of weights"


def test_ranks_are_compared_each_with_its_own(tmp_path):
    for name in ("a", "b"):
        for rank in (0, 1):
            write(
                tmp_path / name,
                "batch",
                {"x": [float(rank)]},
                pid=100 * (rank + 1) - rank,
            )
    assert compare_dumps(tmp_path / "a", tmp_path / "b") is None


def test_what_an_optimizer_lacks_was_lost_and_what_is_lacking_elsewhere_is_not(
    tmp_path,
):
    assert pair(tmp_path, "weights", {"w": [1.0]}, {}) is None
    assert pair(tmp_path, "optimizer", {"m": [1.0, 2.0]}, {}) == ("m", 2, None)


def test_another_shape_has_no_distance(tmp_path):
    assert pair(tmp_path, "weights", {"w": [1.0]}, {"w": [1.0, 2.0]}) == ("w", 2, None)


def test_integers_have_no_distance(tmp_path):
    found = pair(
        tmp_path, "batch", {"ids": [1, 2, 3]}, {"ids": [1, 5, 6]}, dtype="int64"
    )
    assert found == ("ids", 2, None)


def test_a_tensor_that_is_no_number_somewhere_has_no_distance(tmp_path):
    found = pair(tmp_path, "loss", {"loss": [1.0]}, {"loss": [math.nan]})
    assert found == ("loss", 1, None)


def test_bfloat16_is_read_without_a_type_of_its_own(tmp_path):
    ours = {"w": [0x3F80, 0x3F80]}  # 1.0 in bfloat16
    theirs = {"w": [0x3F80, 0x3F82]}
    assert pair(tmp_path, "weights", ours, theirs, dtype="bfloat16") == ("w", 1, 2)


def test_a_scalar_has_one_element(tmp_path):
    assert pair(tmp_path, "loss", {"loss": 1.0}, {"loss": 1.5}) == ("loss", 1, 1 << 22)


def test_a_file_that_is_no_index_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"^'x\.json' is not the index of a dump$"):
        compare_dumps(tmp_path, tmp_path)


def bits(value, code, kind):
    return np.frombuffer(struct.pack(code, value), kind)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 20))
def test_a_distance_is_the_number_of_floats_between(start, count):
    end = start
    for _ in range(count):
        end = math.nextafter(end, math.inf)
    ours, theirs = bits(start, "<d", "<u8"), bits(end, "<d", "<u8")
    # Only the step beyond the last float of all leads nowhere further.
    steps = count if math.isfinite(end) else None
    found = ulp_distance(ours, theirs, dtype="float64")
    assert steps is None or found == steps


@pytest.mark.parametrize(
    ("dtype", "code", "kind", "digits"),
    [
        pytest.param("float16", "<e", "<u2", 10, id="float16"),
        pytest.param("float32", "<f", "<u4", 23, id="float32"),
        pytest.param("float64", "<d", "<u8", 52, id="float64"),
    ],
)
def test_from_1_to_2_lie_as_many_floats_as_the_fraction_holds(
    dtype, code, kind, digits
):
    found = ulp_distance(bits(1.0, code, kind), bits(2.0, code, kind), dtype=dtype)
    assert found == 1 << digits


def test_both_zeros_are_one_and_the_signs_meet_there():
    def distance(a, b):
        return ulp_distance(bits(a, "<f", "<u4"), bits(b, "<f", "<u4"), dtype="float32")

    smallest = 1.401298464324817e-45
    assert distance(0.0, -0.0) == 0
    assert distance(smallest, -smallest) == 2
    assert distance(math.inf, -math.inf) == 2 * 0x7F800000


@pytest.mark.parametrize(
    ("dtype", "not_a_number", "largest"),
    [
        pytest.param("float16", 0x7C01, 0x7C00, id="float16"),
        pytest.param("bfloat16", 0x7F81, 0x7F80, id="bfloat16"),
    ],
)
def test_infinity_is_a_number_and_beyond_it_is_none(dtype, not_a_number, largest):
    one = np.array([0], "<u2")
    assert ulp_distance(one, np.array([largest], "<u2"), dtype=dtype) == largest
    assert ulp_distance(one, np.array([not_a_number], "<u2"), dtype=dtype) is None
