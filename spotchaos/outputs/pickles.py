"""Pickles, read without running anything that they name.

Two pickles of equal objects need not be equal bytes: what was loaded before it is saved
shares its strings and tuples otherwise. What a pickle calls is only noted, so that the
structure can be compared.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import IO, Any, ClassVar

import xxhash

from spotchaos.outputs.tables import Fields, Row, Table, TornError, as_json, packed

MOST_BYTES = 64 << 20
MOST_DEPTH = 60
MOST_LEAVES = 500_000
_BREAKS_OFF = re.compile("truncated|exhausted|ran out")
# The one in Python: its opcodes can be given other meanings.
_IN_PYTHON: Any = vars(pickle)["_Unpickler"]
_WRAPPER = "joblib.numpy_pickle.NumpyArrayWrapper"


class Unreadable(Exception):  # noqa: N818 - it says what the file is, not what broke
    """A pickle of a kind that nobody here can read."""


class _Named:
    """Stands for whatever a pickle names: a class, a function, or what they make."""

    def __init__(self, *args: Any, name: str = "", **kwargs: Any) -> None:
        self.name = name
        self.args = args
        self.state: Any = kwargs or None
        self.items: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> _Named:
        return _Named(*args, name=self.name, **kwargs)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def add(self, item: Any) -> None:
        self.items.append(item)


class _Reader(_IN_PYTHON):  # type: ignore[misc]
    """An unpickler that imports and calls nothing, and knows joblib's arrays."""

    dispatch: ClassVar[dict[int, Any]] = dict(_IN_PYTHON.dispatch)

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._source = file

    def find_class(self, module: str, name: str) -> _Named:
        return _Named(name=f"{module}.{name}")

    def persistent_load(self, pid: Any) -> _Named:
        return _Named(pid, name="persistent")

    def _made(self, made: Any, *args: Any) -> None:
        self.append(made(*args))

    def load_newobj(self) -> None:
        args = self.stack.pop()
        self._made(self.stack.pop(), *args)

    def load_newobj_ex(self) -> None:
        kwargs, args = self.stack.pop(), self.stack.pop()
        made = self.stack.pop()
        self.append(made(*args, **kwargs))

    def load_reduce(self) -> None:
        args = self.stack.pop()
        self._made(self.stack.pop(), *args)

    def load_build(self) -> None:
        state = self.stack.pop()
        made = self.stack[-1]
        if not isinstance(made, _Named):
            raise Unreadable(type(made).__name__)
        made.state = state
        if made.name == _WRAPPER:
            self.stack[-1] = self._array(state)

    def _array(self, state: dict[str, Any]) -> _Named:
        """Return the array that joblib writes behind what describes it."""
        kind = state["dtype"].args[0] if state["dtype"].args else "O"
        if kind.startswith("O"):
            return _Named(_Reader(self._source).load(), name="array of objects")
        count = 1
        for length in state["shape"]:
            count *= length
        if state.get("numpy_array_alignment_bytes") is not None:
            self._source.read(self._source.read(1)[0])
        digits = "".join(letter for letter in kind if letter.isdecimal())
        data = self._source.read(count * int(digits or 1))
        return _Named(kind, list(state["shape"]), data, name="array")


for _code, _load in (
    (pickle.NEWOBJ, _Reader.load_newobj),
    (pickle.NEWOBJ_EX, _Reader.load_newobj_ex),
    (pickle.REDUCE, _Reader.load_reduce),
    (pickle.BUILD, _Reader.load_build),
):
    _Reader.dispatch[_code[0]] = _load


def is_pickle(head: bytes) -> bool:
    """Tell whether bytes begin as a pickle of protocol 2 to 5 does."""
    return head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5")


def pickle_table(part: str, opener: Callable[[], IO[bytes]], size: int) -> Table:
    """Return what a pickle holds as one record, its parts as fields.

    Raises:
        TornError: it breaks off.
        Unreadable: it is of a kind that nobody here can read.
    """
    if size > MOST_BYTES:
        raise Unreadable(f"{size} bytes")
    with opener() as file:
        content = io.BytesIO(file.read())
    try:
        leaves = _flat(_Reader(content).load(), "", 0)
        found = dict(islice(leaves, MOST_LEAVES))
    except (EOFError, pickle.UnpicklingError) as error:
        if isinstance(error, EOFError) or _BREAKS_OFF.search(str(error)):
            raise TornError("the pickle breaks off") from None
        raise Unreadable(str(error)) from None
    except Exception as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from None

    if next(leaves, None) is not None:
        raise Unreadable(f"more than {MOST_LEAVES} values")

    def rows() -> Iterator[Row]:
        yield "all", packed(found)

    def decode(raw: bytes) -> Fields | None:
        return as_json(raw)

    return Table(part, "pickle", rows, decode)


def _flat(value: Any, at: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of what a pickle holds, by where they are."""
    if depth > MOST_DEPTH:
        yield at, "deeper"
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{at}[{_key(key)}]", depth + 1)
    elif isinstance(value, list | tuple):
        yield f"{at}#", len(value)
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{at}[{index}]", depth + 1)
    elif isinstance(value, set | frozenset):
        yield at, sorted(map(repr, value))
    elif isinstance(value, _Named):
        yield f"{at}:", value.name
        yield from _flat(value.args, f"{at}()", depth + 1)
        if value.state is not None:
            yield from _flat(value.state, f"{at}.", depth + 1)
        if value.items:
            yield from _flat(value.items, f"{at}+", depth + 1)
    elif isinstance(value, bytes | bytearray):
        yield at, xxhash.xxh3_128_hexdigest(bytes(value))
    elif value is None or isinstance(value, bool | int | float | str):
        yield at, value if isinstance(value, str | float | None) else repr(value)
    else:
        yield at, repr(value)


def _key(key: Any) -> str:
    return key.name if isinstance(key, _Named) else repr(key)
