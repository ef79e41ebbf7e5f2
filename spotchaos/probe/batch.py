"""What a training forward was given: its digest, and which samples it holds.

Only data counts: a tensor that a graph produced is what another module made of it, and
would differ in the last bits where nothing of the data does. The same holds for one that
was cut off from its graph (`discriminator(fake.detach())`).
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from typing import TYPE_CHECKING

from spotchaos.probe.dump import DUMPS
from spotchaos.probe.fetched import FETCHED
from spotchaos.probe.fingerprint import Digest, tensor_digest
from spotchaos.probe.leaves import leaves_of
from spotchaos.probe.session import SESSION
from spotchaos.probe.values import is_tensor, put

if TYPE_CHECKING:
    from typing import Any

# Beyond this many rows a batch counts as one sample: a digest each would cost a step.
_MOST_ROWS = 4096


# Outputs of a step's forwards that are looked through for the memory of an argument.
_MOST_OUTPUTS = 64


class Outputs:
    """What the forwards of the step that is under way have made, as long as it lives."""

    def __init__(self) -> None:
        self._made: deque[weakref.ref[Any]] = deque(maxlen=_MOST_OUTPUTS)

    def add(self, tensor: Any) -> None:
        self._made.append(weakref.ref(tensor))

    def clear(self) -> None:
        self._made.clear()

    def hold(self, tensor: Any) -> bool:
        """Tell whether a tensor without a graph is one of them, cut off from its graph."""
        made = [m for m in (reference() for reference in self._made) if m is not None]
        if not made:
            return False
        place = _memory(tensor)
        return bool(place) and any(_memory(m) == place for m in made)


OUTPUTS = Outputs()


def _memory(tensor: Any) -> int:
    """Return where a tensor's memory begins; 0 if it has none of its own."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0


class Batch:
    """The digest of a forward's data, and the ids of its samples.

    `kind` is "index" if the ids are those of the data set, else "rows": digests of the
    rows, made when asked for.
    """

    def __init__(self) -> None:
        self.digest = ""
        self.kind = "rows"
        self.is_empty = True
        self.has_tensors = False  # of any kind, also of what a graph made
        self._ids: list[str] | None = None
        self._rows: list[str] = []

    def is_of(self, other: Batch) -> bool:
        """Tell whether both hold one and the same batch that a loader handed out."""
        return self._ids is not None and self._ids is other._ids

    def ids_as(self, kind: str) -> list[str]:
        """Return ids of the kind that all batches of a step share."""
        return self._ids if kind == "index" and self._ids is not None else self._rows


def batch_of(args: Any, kwargs: Any) -> Batch:
    """Fingerprint the arguments of an outermost module call."""
    batch = Batch()
    tensors: list[tuple[str, Any]] = []
    digest = Digest()
    parameter = sys.modules["torch"].nn.Parameter
    for name, leaf in leaves_of({"args": args, **kwargs}):
        if is_tensor(leaf):
            batch.has_tensors = True
            if (
                leaf.grad_fn is not None
                or isinstance(leaf, parameter)
                or OUTPUTS.hold(leaf)
            ):
                continue
            tensors.append((name, leaf))
        elif not isinstance(leaf, (bool, int, float, str, bytes)) and not hasattr(
            leaf, "tobytes"
        ):
            continue
        digest.text(name)
        put(digest, leaf)
        batch.is_empty = False
    batch.digest = digest.hex()
    DUMPS.write(SESSION.steps + 1, "batch", tensors)
    ids = FETCHED.ids_of([tensor for _, tensor in tensors])
    if ids is not None:
        batch.kind, batch._ids = "index", ids
    batch._rows = _rows([tensor for _, tensor in tensors], batch.digest)
    return batch


def _rows(tensors: list[Any], whole: str) -> list[str]:
    """Return a digest for each row that the tensors share, or one for the whole."""
    shaped = [
        t for t in tensors if t.dim() > 0 and t.layout is sys.modules["torch"].strided
    ]
    if not shaped:
        return [whole]
    count = max(int(t.shape[0]) for t in shaped)
    alike = [t.detach() for t in shaped if int(t.shape[0]) == count]
    if count > _MOST_ROWS or count == 0 or any(t.device.type != "cpu" for t in alike):
        return [whole]
    if count == 1:
        return [tensor_digest(alike[0][0])[:16]] if len(alike) == 1 else [whole[:16]]
    rows = []
    for number in range(count):
        digest = Digest()
        for tensor in alike:
            digest.tensor(tensor[number])
        rows.append(digest.hex()[:16])
    return rows
