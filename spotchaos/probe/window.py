"""The course of training: forwards, backwards and optimizer steps, and what they mean.

A window lasts from one step to the next. It keeps its forwards, each with the sample of
the state taken before it, until the step tells whose gradients it consumed: the state of
step K is the sample of the first forward whose gradients reach step K+1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotchaos.probe.batch import Batch
from spotchaos.probe.components import gradients_of, sorted_digest, weights
from spotchaos.probe.dump import DUMPS
from spotchaos.probe.fingerprint import Digest
from spotchaos.probe.sample import Sample
from spotchaos.probe.saves import SAVES
from spotchaos.probe.session import SESSION
from spotchaos.probe.structure import LIVING, STRUCTURE, numel_of, parameters_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class Forward:
    """One training forward of the outermost module."""

    __slots__ = ("backed", "batch", "has_node", "owners", "reached", "sample", "zeroed")

    def __init__(
        self, sample: Sample | None, batch: Batch, owners: frozenset[int]
    ) -> None:
        self.sample = sample
        self.batch = batch
        self.owners = owners  # indices of the optimizers that train this module
        self.zeroed: set[int] = set()
        self.backed = False  # a gradient came back through it
        self.has_node = False  # its output could be watched for that
        self.reached = False  # an optimizer has consumed its gradients

    @property
    def is_dropped(self) -> bool:
        """Whether its gradients were thrown away before any step."""
        return self.backed and not self.reached and self.zeroed >= self.owners


class Loss:
    """The value on which a backward was called, and the forwards it reached."""

    __slots__ = ("digest", "forwards", "value")

    def __init__(self, digest: str, value: float | None) -> None:
        self.digest = digest
        self.value = value
        self.forwards: list[Forward] = []


class Training:
    """What is known of the current window, and the counts of the whole attempt."""

    def __init__(self) -> None:
        self.counted = {"optimizer": 0, "backward": 0, "batch": 0}
        self.optimizer_steps: dict[int, int] = {}
        self.epoch = 0
        self.in_backward = 0
        self.is_training = False  # since the last evaluation
        self.first_written = False
        self._forwards: list[Forward] = []
        self._losses: list[Loss] = []
        self._fallback: Sample | None = None
        self._gradients: str | None = None

    # ------------------------------------------------------------ forwards

    def begin_forward(self, batch: Batch, owners: frozenset[int]) -> Forward:
        """Note a training forward that is about to run; may halt."""
        self.is_training = True
        SAVES.end()
        self._drop_lost_gradients()
        confirmed = any(f.backed and not f.is_dropped for f in self._forwards)
        sample = None if confirmed else self._taken(in_background=True)
        forward = Forward(sample, batch, owners)
        self._forwards.append(forward)
        SESSION.site("forward")
        return forward

    def forget_forward(self, forward: Forward) -> None:
        """Take back a forward that raised."""
        if forward in self._forwards:
            self._forwards.remove(forward)

    def evaluation(self) -> None:
        """Note a forward that trains nothing; a site once for each block of them."""
        if self.is_training:
            self.is_training = False
            SAVES.end()
            SESSION.site("evaluation")

    def zero_grad(self, optimizers: set[int]) -> None:
        """Note that gradients of these optimizers' parameters were thrown away."""
        for forward in self._forwards:
            if forward.backed and not forward.reached:
                forward.zeroed |= optimizers

    def _drop_lost_gradients(self) -> None:
        """Find out whether someone set all gradients to None by hand."""
        if not any(f.backed and not f.reached for f in self._forwards):
            return
        for index, optimizer in LIVING.live_optimizers():
            if all(p.grad is None for p in parameters_of(optimizer)):
                self.zero_grad({index})

    # ----------------------------------------------------------- backwards

    def begin_backward(self, tensors: list[Any]) -> Loss | None:
        """Note a backward that is about to run; may halt."""
        SAVES.end()
        self.counted["backward"] += 1
        loss = None
        if SESSION.fingerprint != "light":
            loss = _loss_of(tensors)
            self._losses.append(loss)
        if self._fallback is None and not any(f.sample for f in self._forwards):
            self._fallback = self._taken(in_background=True)
        SESSION.site("backward")
        return loss

    def end_backward(self, loss: Loss | None, waiting: list[Forward]) -> None:
        """Note which forwards of those `waiting` got gradients by this backward."""
        for forward in waiting:
            if not forward.has_node:
                forward.backed = True
        if loss is not None:
            loss.forwards = [f for f in waiting if f.backed]
        if SESSION.orders["step_by"] == "backward":
            self.complete_step()
        elif not LIVING.optimizers:
            # No optimizer of torch's will announce itself before it changes weights.
            self.settle()

    def waiting_forwards(self) -> list[Forward]:
        return [f for f in self._forwards if not f.backed]

    # --------------------------------------------------------------- steps

    def main_optimizer(self) -> int | None:
        """Return the index of the optimizer whose steps are the program's steps."""
        ordered = SESSION.orders["main_optimizer"]
        if ordered is not None:
            return int(ordered)
        sizes = [(numel_of(o), -index) for index, o in LIVING.live_optimizers()]
        return -max(sizes)[1] if sizes else None

    def begin_step(self, optimizer: Any, index: int, *, has_closure: bool) -> None:
        """Note that an outermost optimizer step is about to change weights; may halt."""
        SAVES.end()
        self.settle()
        if not has_closure:
            self._consume(optimizer, index)
        if self._is_step(index):
            SESSION.site("optimizer-step")

    def end_step(
        self, optimizer: Any, index: int, *, has_closure: bool, nested: set[int]
    ) -> None:
        """Note that an outermost optimizer step is done; completes ours, may halt."""
        self.counted["optimizer"] += 1
        self.optimizer_steps[index] = self.optimizer_steps.get(index, 0) + 1
        if has_closure:
            self._consume(optimizer, index)
        if self._is_step(index) or (
            SESSION.orders["step_by"] == "optimizer" and self.main_optimizer() in nested
        ):
            self.complete_step()

    def _is_step(self, index: int) -> bool:
        return (
            SESSION.orders["step_by"] == "optimizer" and index == self.main_optimizer()
        )

    def _consume(self, optimizer: Any, index: int) -> None:
        if self._fallback is None and not any(f.sample for f in self._forwards):
            self._fallback = self._taken(in_background=False)
        for forward in self._forwards:
            if forward.backed and not forward.is_dropped and index in forward.owners:
                forward.reached = True
        main = index == self.main_optimizer() or self._gradients is None
        if main and SESSION.fingerprint == "all":
            names = {id(parameter): name for name, parameter in weights()}
            gradients = gradients_of(optimizer, names)
            self._gradients = sorted_digest(gradients)
            DUMPS.write(SESSION.steps + 1, "gradients", gradients)

    def complete_step(self) -> None:
        """Write what is known of the step that was just completed, and begin a window."""
        trained = [f for f in self._forwards if f.backed and not f.is_dropped]
        self.settle()
        samples = [f.sample for f in trained if f.sample is not None]
        self._write_state(samples[0] if samples else self._fallback, at="step")
        SESSION.steps += 1
        step = SESSION.steps
        record = SESSION.record
        assert record is not None
        record.count_steps(step)
        record.write("step", step=step, **self._made(trained), epoch=self.epoch)
        carried = [f for f in self._forwards if not f.backed and f.sample is not None][
            -8:
        ]
        for forward in carried:
            forward.sample = None
        self._forwards = carried
        self._losses = []
        self._fallback = None
        self._gradients = None
        SESSION.site("step-end")

    def _made(self, trained: list[Forward]) -> dict[str, Any]:
        """Return the part of a step's mark that says what it consumed and made."""
        if SESSION.fingerprint == "light":
            return {"c": {}, "micro": max(1, len(trained))}
        found: dict[str, str] = {}
        batches = [f.batch for f in trained if not f.batch.is_empty]
        ids: list[str] | None = None
        kind = "rows"
        if batches:
            found["batch"] = _chained([b.digest for b in batches])
            kinds = {b.kind for b in batches}
            kind = "index" if kinds == {"index"} else "rows"
            ids = [i for b in batches for i in b.ids_as(kind)]
            found["samples"] = _chained(ids)
        losses = [
            loss
            for loss in self._losses
            if not loss.forwards or not all(f.is_dropped for f in loss.forwards)
        ]
        value = None
        if losses:
            found["loss"] = _chained([loss.digest for loss in losses])
            values = [loss.value for loss in losses if loss.value is not None]
            total = sum(values)
            value = total if values and total - total == 0.0 else None
        if self._gradients is not None:
            found["gradients"] = self._gradients
        return {
            "c": found,
            "loss": value,
            "samples": ids,
            "ids": kind,
            "micro": max(1, len(trained) or len(losses)),
        }

    # ---------------------------------------------------------------- data

    def fetched(self) -> None:
        """Note that a loader handed out a batch, which may be what counts as a step."""
        if SESSION.orders["step_by"] == "batch":
            if self._fallback is not None:
                self.complete_step()
            self._fallback = self._taken(in_background=False)

    def end_epoch(self) -> None:
        """Note that a loader that trains is exhausted; may halt."""
        if SESSION.orders["step_by"] == "batch" and self._fallback is not None:
            self.complete_step()
        self.epoch += 1
        SAVES.end()
        SESSION.site("epoch-end")

    # --------------------------------------------------------------- state

    def settle(self) -> None:
        """Wait for fingerprints that are still being made of what may change now."""
        for sample in self._samples():
            sample.settle()

    def _samples(self) -> Iterator[Sample]:
        if self._fallback is not None:
            yield self._fallback
        for forward in self._forwards:
            if forward.sample is not None:
                yield forward.sample

    def _taken(self, *, in_background: bool) -> Sample | None:
        """Sample the state if the orders want that of this step."""
        step = SESSION.steps
        mode = SESSION.fingerprint
        if step and mode == "light":
            return None
        if step and mode == "saves" and step % max(1, int(SESSION.orders["every"])):
            return None
        return self.sampled(in_background=in_background)

    def sampled(self, *, in_background: bool = False) -> Sample:
        """Sample the state of this moment."""
        sample = Sample(SESSION.steps, self.epoch)
        try:
            sample.fill(in_background=in_background)
            DUMPS.write_state(SESSION.steps)
        except Exception as error:
            SESSION.trouble("sample of the state", error)
        return sample

    def _write_state(self, sample: Sample | None, *, at: str) -> None:
        if sample is not None and not sample.written:
            self.write_sample(sample, at=at)

    def write_sample(self, sample: Sample, *, at: str, **more: Any) -> None:
        """Write a sample's mark, once its fingerprints are there."""
        sample.settle()
        sample.written = True
        names = {}
        if not self.first_written:
            names = {"names": sample.names}
            self.first_written = True
        SESSION.mark(
            "state",
            step=sample.step,
            at=at,
            c=sample.components,
            rng=sample.rng,
            epoch=sample.epoch,
            dtypes=sample.dtypes,
            **names,
            **more,
        )

    def write_join(self) -> None:
        """Write the newest sample that no step consumed, as when the attempt ends early."""
        samples = [s for s in self._samples() if not s.written]
        if samples and samples[0].step == SESSION.steps:
            self.write_sample(samples[0], at="step")

    def write_finish(self) -> None:
        """Write the state with which the process ends."""
        if self.has_roots():
            self.write_sample(self.sampled(), at="finish")

    def has_roots(self) -> bool:
        """Return whether anything that is trained is alive."""
        return bool(LIVING.live_optimizers()) or bool(STRUCTURE.roots())

    def reset(self) -> None:
        """Begin afresh: called in a forked child."""
        self.__init__()  # type: ignore[misc]


TRAINING = Training()


def _loss_of(tensors: list[Any]) -> Loss:
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


def _chained(digests: list[str]) -> str:
    if len(digests) == 1 and len(digests[0]) == 32:
        return digests[0]
    digest = Digest()
    for one in digests:
        digest.text(one)
    return digest.hex()
