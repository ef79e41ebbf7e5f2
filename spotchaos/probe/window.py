"""The course of training: forwards, backwards and optimizer steps, and what they mean.

A window lasts from one step to the next. It keeps its forwards, each with the sample of
the state taken before it, until the step tells whose gradients it consumed: the state of
step K is the sample of the first forward whose gradients reach step K+1.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from spotchaos.probe.averages import AVERAGES
from spotchaos.probe.batch import OUTPUTS, Batch
from spotchaos.probe.checkpoint_io import SAVES
from spotchaos.probe.components import (
    gradients_of,
    shared_gradients,
    sorted_digest,
    weights,
)
from spotchaos.probe.dump import DUMPS
from spotchaos.probe.forwards import Forward, Loss, loss_of, made, without_blind
from spotchaos.probe.frozen import Frozen
from spotchaos.probe.optimizer_phases import Turns
from spotchaos.probe.own_generators import OWN_GENERATORS
from spotchaos.probe.sample import KEEPER, Found, Sample
from spotchaos.probe.session import SESSION, shield
from spotchaos.probe.structure import LIVING, STRUCTURE, numel_of, parameters_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class Training:
    """What is known of the current window, and the counts of the whole attempt."""

    def __init__(self) -> None:
        self.counted = {"optimizer": 0, "backward": 0, "batch": 0}
        self.optimizer_steps: dict[int, int] = {}
        # Optimizer -> how often it was the last to step before a save or the end: with
        # several, the one that closes a round is the one whose steps count.
        self.closings: dict[int, int] = {}
        self.main_used: int | None = None
        self.thread: int | None = None  # the one that trains
        self._stepped_last: int | None = None
        self._stood_in_at: int | None = None  # backwards when another was counted by
        self._turns: dict[int, int] = {}  # optimizer -> how many had stepped before it
        self._phases = Turns()
        self._frozen = Frozen()
        self.epoch = 0
        self.in_backward = 0
        self.has_backward = False  # `backward` was called, not only `autograd.grad`
        self.is_training = False  # since the last evaluation
        self.first_written = False
        self._has_searched = False  # for averages among plain objects
        self._forwards: list[Forward] = []
        self._losses: list[Loss] = []
        self._fallback: Sample | None = None
        self._batch_is_open = False
        self._in_closure = False  # an optimizer step is calling its closure
        self._gradients: str | None = None

    # ------------------------------------------------------------ forwards

    @shield
    def begin_forward(self, batch: Batch, owners: frozenset[int]) -> Forward | None:
        """Note a training forward that is about to run; may halt."""
        self.is_training = True
        SAVES.end()
        self._drop_lost_gradients()
        # Later evaluations of a closure see weights of halfway through a step.
        is_halfway = self._in_closure and any(f.in_closure for f in self._forwards)
        sample = None
        if not is_halfway:
            sample = self._taken(in_background=True, base=self._confirmed_sample())
        forward = Forward(sample, batch, owners, in_closure=self._in_closure)
        self._forwards.append(forward)
        SESSION.site("forward")
        return forward

    def _confirmed_sample(self) -> Sample | None:
        """Return a sample of this window since which no weight can have changed.

        That is so after a backward whose gradients wait for their step. Its gradients may
        still be dropped, so that later forwards need samples of their own; but those
        share what only a step changes.
        """
        for forward in self._forwards:
            waits = forward.backed and not forward.reached and not forward.is_dropped
            if (
                waits
                and forward.sample is not None
                and forward.sample.step == SESSION.steps
            ):
                return forward.sample
        return None

    def _sample_without_forward(self, *, in_background: bool) -> None:
        """Sample now if the program has no module calls that would say when."""
        if self._fallback is None and not SESSION.counts["forward"]:
            self._fallback = self._taken(in_background=in_background)

    def forget_forward(self, forward: Forward) -> None:
        """Take back a forward that raised."""
        if forward in self._forwards:
            self._forwards.remove(forward)

    @shield
    def note_untrained(self, module: Any, owners: frozenset[int]) -> None:
        """Note the call of a module that no optimizer at work trains, if it is one."""
        if SESSION.fingerprint == "all" and not any(
            index < 0 or self._phases.is_at_work(index) for index in owners
        ):
            self._frozen.see(module)

    @shield
    def evaluation(self) -> None:
        """Note a forward that trains nothing; a site once for each block of them."""
        if self.is_training:
            self.is_training = False
            SAVES.end()
            SESSION.site("evaluation")

    @shield
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

    @shield
    def begin_backward(self, tensors: list[Any]) -> Loss | None:
        """Note a backward that is about to run; may halt."""
        SAVES.end()
        self.counted["backward"] += 1
        LIVING.see_leaves(tensors)
        loss = None
        if SESSION.fingerprint != "light":
            loss = loss_of(tensors)
            self._losses.append(loss)
        self._sample_without_forward(in_background=True)
        SESSION.site("backward")
        return loss

    @shield
    def end_backward(self, loss: Loss | None, waiting: list[Forward]) -> None:
        """Note which forwards of those `waiting` got gradients by this backward."""
        for forward in waiting:
            if not forward.has_node:
                forward.backed = True
        for forward in waiting:
            # Within a closure, gradients are for the step that called it.
            forward.reached = forward.reached or (forward.backed and forward.in_closure)
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
        if ordered is not None and any(
            index == int(ordered) for index, _ in LIVING.live_optimizers()
        ):
            return int(ordered)
        # Also of an attempt that made fewer: one that searched for a rate first, say.
        sizes = [(numel_of(o), -index) for index, o in LIVING.live_optimizers()]
        return -max(sizes)[1] if sizes else None

    @shield
    def begin_step(self, optimizer: Any, index: int, *, has_closure: bool) -> None:
        """Note that an outermost optimizer step is about to change weights; may halt."""
        SAVES.end()
        self.settle()
        self._in_closure = has_closure
        if not has_closure:
            self._consume(optimizer, index)
        if self._is_step(index):
            SESSION.site("optimizer-step")

    @shield
    def end_step(
        self, optimizer: Any, index: int, *, has_closure: bool, nested: set[int]
    ) -> None:
        """Note that an outermost optimizer step is done; completes ours, may halt."""
        self.counted["optimizer"] += 1
        self._in_closure = False
        self.optimizer_steps[index] = self.optimizer_steps.get(index, 0) + 1
        self._stepped_last = index
        self._turns[index] = self.counted["optimizer"]
        self._phases.note({index, *nested}, self.counted["optimizer"])
        self.thread = threading.get_ident()
        if has_closure:
            self._consume(optimizer, index)
        if self._is_step(index) or (
            SESSION.orders["step_by"] == "optimizer" and self.main_optimizer() in nested
        ):
            self.main_used = self.main_optimizer()
            ordered = SESSION.orders["main_optimizer"]
            stands_in = ordered is not None and self.main_used != int(ordered)
            self._stood_in_at = self.counted["backward"] if stands_in else None
            self.complete_step()

    def note_closing(self) -> None:
        """Note that a round of steps is over: something is saved, or the program ends."""
        last = self._stepped_last
        if last is not None:
            self.closings[last] = self.closings.get(last, 0) + 1

    def leave_out_others(self) -> None:
        """Leave out of the window what other optimizers have applied so far.

        At a save: where optimizers take turns by epochs, whoever resumes from it begins
        the step that is counted after it. And at the load of a resume, which begins there.
        """
        self._frozen.take()
        if not self._phases.has_window:
            return
        self.settle()
        self._forwards = [f for f in self._forwards if not f.reached]
        self._losses = [
            loss for loss in self._losses if not any(f.reached for f in loss.forwards)
        ]
        self._fallback = None
        self._gradients = None

    def _is_step(self, index: int) -> bool:
        # The one that counts may be made only after another stood in for it and stepped.
        return (
            SESSION.orders["step_by"] == "optimizer"
            and index == self.main_optimizer()
            and (index == self.main_used or not self._is_counted())
        )

    def _is_counted(self) -> bool:
        """Whether one that stood in for another has counted the step that goes on."""
        return self._stood_in_at == self.counted["backward"]

    def _consume(self, optimizer: Any, index: int) -> None:
        if not self._is_counted():
            self._sample_without_forward(in_background=False)
        for forward in self._forwards:
            if forward.backed and not forward.is_dropped and index in forward.owners:
                forward.reached = True
        is_first = self._gradients is None and not self._is_counted()
        if not is_first and index != self.main_optimizer():
            return
        if SESSION.fingerprint == "all":
            named = weights()
            gradients = shared_gradients(named)
            if gradients is None:
                names = {id(parameter): name for name, parameter in named}
                gradients = gradients_of(optimizer, names)
            elif not is_first:
                return
            self._gradients = sorted_digest(gradients)
            DUMPS.write(SESSION.steps + 1, "gradients", gradients)

    @shield
    def complete_step(self) -> None:
        """Write what is known of the step that was just completed, and begin a window."""
        trained = without_blind(
            [f for f in self._forwards if f.backed and not f.is_dropped]
        )
        self.settle()
        samples = [f.sample for f in trained if f.sample is not None]
        if not SESSION.steps:
            # By now every rank knows which it is, also one that a program numbered.
            SESSION.say_hello()
        if samples:
            self._take_unmoved_buffers(samples[0])
        self._write_state(samples[0] if samples else self._fallback, at="step")
        SESSION.steps += 1
        OUTPUTS.clear()
        step = SESSION.steps
        record = SESSION.record
        assert record is not None
        record.count_steps(step)
        consumed: dict[str, Any] = {"c": {}, "micro": max(1, len(trained))}
        if SESSION.fingerprint != "light":
            consumed = made(_once(trained), self._losses, self._gradients)
        consumed["by"] = self._phases.take_window()
        frozen = self._frozen.take()
        if frozen:
            consumed["frozen"] = frozen
        record.write("step", step=step, **consumed, epoch=self.epoch)
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

    # ---------------------------------------------------------------- data

    @shield
    def fetched(self) -> None:
        """Note that a loader handed out a batch, which may be what counts as a step."""
        if SESSION.orders["step_by"] == "batch":
            self.complete_batch()
            self._batch_is_open = True
            self._fallback = self._taken(in_background=False)

    def complete_batch(self) -> None:
        """Complete the step of the newest batch, if batches are what counts."""
        if self._batch_is_open:
            self._batch_is_open = False
            self.complete_step()

    def progress(self) -> tuple[int, ...]:
        """Return what moves when something is trained on: not a forward alone."""
        return self.counted["backward"], self.counted["optimizer"], SESSION.steps

    @shield
    def exhausted(self, *, trains: bool) -> None:
        """Note that a loader is exhausted, one that trains if `trains`; may halt."""
        self.complete_batch()
        if not trains and SESSION.orders["step_by"] != "batch":
            return
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

    def _taken(
        self, *, in_background: bool, base: Sample | None = None
    ) -> Sample | None:
        """Sample the state if the orders want that of this step."""
        if self._is_wanted(SESSION.steps):
            return self.sampled(in_background=in_background, base=base)
        if not KEEPER.is_of_all():
            # Another model is trained now: how that one ends is to be known as well.
            try:
                KEEPER.keep(self._found())
            except Exception as error:
                SESSION.trouble("last state", error)
        return None

    @staticmethod
    def _is_wanted(step: int) -> bool:
        if not step or SESSION.fingerprint not in ("light", "saves"):
            return True
        if SESSION.fingerprint == "light":
            return False
        return step % max(1, int(SESSION.orders["every"])) == 0

    def _found(self) -> Found:
        return Found(self._phases.idle_sets(LIVING.separate_optimizers()))

    def sampled(
        self, *, in_background: bool = False, base: Sample | None = None
    ) -> Sample:
        """Sample the state of this moment."""
        sample = Sample(SESSION.steps, self.epoch)
        try:
            if not self._has_searched:
                self._has_searched = True
                if not SESSION.steps:
                    LIVING.drop_the_dead()
                AVERAGES.search_objects()
                OWN_GENERATORS.search()
            found = self._found()
            sample.fill(found, in_background=in_background, base=base)
            KEEPER.keep(found)
            DUMPS.write_state(SESSION.steps)
        except Exception as error:
            SESSION.trouble("sample of the state", error)
        return sample

    def _take_unmoved_buffers(self, sample: Sample) -> None:
        """Give a sample the buffers that the first forward of its window found.

        A forward that trains nothing in this window (a generator's, whose output is
        detached) moves batch norm's statistics by what it was given. What was restored
        is what lay there before it, if no weight has changed since, as by a load.
        """
        for forward in self._forwards:
            early = forward.sample
            if early is sample:
                return
            if early is None or early.step != sample.step:
                continue
            same = early.components.get("weights") == sample.components.get("weights")
            if (
                same
                and "buffers" in early.components
                and "buffers" in sample.components
            ):
                sample.components["buffers"] = early.components["buffers"]
                for idle, less in sample.less.items():
                    if "buffers" in early.less.get(idle, {}):
                        less["buffers"] = early.less[idle]["buffers"]
                return

    def _write_state(self, sample: Sample | None, *, at: str) -> None:
        if sample is not None and not sample.written:
            self.write_sample(sample, at=at)

    def write_sample(self, sample: Sample, *, at: str, **more: Any) -> None:
        """Write a sample's mark, once its fingerprints are there."""
        sample.settle()
        sample.settle_rivals(self._turns)
        sample.written = True
        names = {}
        if not self.first_written:
            names = {"names": sample.names}
            self.first_written = True
        if sample.less:
            more["less"] = [[sorted(idle), c] for idle, c in sample.less.items()]
        SESSION.mark(
            "state",
            step=sample.step,
            at=at,
            c=sample.components,
            rng=sample.rng,
            epoch=sample.epoch,
            taken=round(sample.taken_s, 6),
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
        sample = KEEPER.last
        if sample is None:
            if not self.has_roots():
                return
            sample = self.sampled()
        else:
            sample.step, sample.epoch = SESSION.steps, self.epoch
            sample.read_streams()
        KEEPER.drop()
        self.write_sample(sample, at="finish")

    def search_again(self) -> None:
        """Have the next sample look for averages that were made since the last search."""
        self._has_searched = False

    def has_roots(self) -> bool:
        """Return whether anything that is trained is alive."""
        return bool(LIVING.live_optimizers() or STRUCTURE.roots() or LIVING.leaves)

    def reset(self) -> None:
        """Begin afresh: called in a forked child."""
        self.__init__()  # type: ignore[misc]


TRAINING = Training()


def _once(forwards: list[Forward]) -> list[Forward]:
    """Leave out what a closure was evaluated on again."""
    kept: list[Forward] = []
    for forward in forwards:
        seen = {f.batch.digest for f in kept if f.in_closure}
        if not (forward.in_closure and forward.batch.digest in seen):
            kept.append(forward)
    return kept
