"""The parts of a window: its forwards with what they consumed, and its losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotchaos.probe.dump import DUMPS
from spotchaos.probe.fingerprint import Digest
from spotchaos.probe.session import SESSION

if TYPE_CHECKING:
    from typing import Any

    from spotchaos.probe.batch import Batch
    from spotchaos.probe.sample import Sample

# Stands for whatever trains a program that has no optimizer of torch's.
_UNKNOWN_OWNER = frozenset((-1,))


class Forward:
    """One training forward of the outermost module."""

    __slots__ = (
        "backed",
        "batch",
        "has_node",
        "in_closure",
        "is_blind",
        "owners",
        "reached",
        "sample",
        "zeroed",
    )

    def __init__(
        self,
        sample: Sample | None,
        batch: Batch,
        owners: frozenset[int],
        *,
        in_closure: bool,
    ) -> None:
        self.in_closure = in_closure  # called by an optimizer from within its step
        self.sample = sample
        self.batch = batch
        self.owners = owners  # indices of the optimizers that train this module
        self.zeroed: set[int] = set()
        self.backed = False  # a gradient came back through it
        self.has_node = False  # its output could be watched for that
        self.is_blind = not batch.has_tensors  # no tensor went in, nor came out
        self.reached = False  # an optimizer has consumed its gradients

    @property
    def is_dropped(self) -> bool:
        """Whether its gradients were thrown away before any step."""
        if self.owners == _UNKNOWN_OWNER:
            # Who changes the weights is not seen, so neither is whether it has.
            return False
        return self.backed and not self.reached and self.zeroed >= self.owners


class Loss:
    """The value on which a backward was called, and the forwards it reached."""

    __slots__ = ("digest", "forwards", "value")

    def __init__(self, digest: str, value: float | None) -> None:
        self.digest = digest
        self.value = value
        self.forwards: list[Forward] = []


def loss_of(tensors: list[Any]) -> Loss:
    """Fingerprint what backward is called on; its value if it has a single one."""
    digest = Digest()
    value = None
    for tensor in tensors:
        try:
            digest.tensor(tensor)
            if tensor.numel() == 1 and not tensor.is_complex():
                value = (value or 0.0) + float(tensor.detach())
        except Exception as error:
            SESSION.trouble("fingerprint of the loss", error)
    DUMPS.write(SESSION.steps + 1, "loss", [(str(i), t) for i, t in enumerate(tensors)])
    return Loss(digest.hex(), value)


def chained(digests: list[str]) -> str:
    """Return one digest of several, in order."""
    if len(digests) == 1 and len(digests[0]) == 32:
        return digests[0]
    digest = Digest()
    for one in digests:
        digest.text(one)
    return digest.hex()


def without_blind(forwards: list[Forward]) -> list[Forward]:
    """Leave out calls in which no tensor was seen, if one was in another.

    A layer that is called with a description of its input, so as to build a model, trains
    nothing; where every call hides its tensors, one of them does.
    """
    return [f for f in forwards if not f.is_blind] or forwards


def _each_once(batches: list[Batch]) -> list[Batch]:
    """Leave out what a second module was given again: a sample is trained on once a step."""
    kept: list[Batch] = []
    for batch in batches:
        if not any(batch.is_of(other) for other in kept):
            kept.append(batch)
    return kept


def made(
    trained: list[Forward], losses: list[Loss], gradients: str | None
) -> dict[str, Any]:
    """Return the part of a step's mark that says what it consumed and made.

    Args:
        trained: the forwards whose gradients the step consumed.
        losses: of all backwards of the window.
        gradients: their fingerprint, if there is one.
    """
    found: dict[str, str] = {}
    batches = [f.batch for f in trained if not f.batch.is_empty]
    ids: list[str] | None = None
    rows: list[str] | None = None
    kind = "rows"
    if batches:
        found["batch"] = chained([b.digest for b in batches])
        # Beside what a loader handed out, noise that is drawn for a step is no sample.
        loaded = _each_once([b for b in batches if b.kind == "index"])
        kind = "index" if loaded else "rows"
        ids = [i for b in loaded or batches for i in b.ids_as(kind)]
        found["samples"] = chained(ids)
        rows = [row for b in loaded or batches for row in b.ids_as("rows")]
    kept = [
        loss
        for loss in losses
        if not loss.forwards or not all(f.is_dropped for f in loss.forwards)
    ]
    value = None
    if kept:
        found["loss"] = chained([loss.digest for loss in kept])
        values = [loss.value for loss in kept if loss.value is not None]
        total = sum(values)
        value = total if values and total - total == 0.0 else None
    if gradients is not None:
        found["gradients"] = gradients
    # Without an index the rows are the samples already.
    of_index = {"rows": rows} if kind == "index" else {}
    return {
        "c": found,
        "loss": value,
        "samples": ids,
        "ids": kind,
        **of_index,
        "micro": max(1, len(trained) or len(kept)),
    }
