"""The state of one step, fingerprinted at the moment that rules.md 1 names.

What no one changes before the next optimizer step (weights, optimizer state, averages)
may be hashed by a thread while forward and backward run; everything else at once. Whoever
is about to change something calls `settle` first.
"""

from __future__ import annotations

import itertools
import threading
from time import monotonic
from typing import TYPE_CHECKING

from spotchaos.probe import components, rng_streams
from spotchaos.probe.own_generators import OWN_GENERATORS
from spotchaos.probe.session import SESSION
from spotchaos.probe.structure import LIVING, STRUCTURE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Named = list[tuple[str, Any]]

# Below this many bytes a thread costs more than it hides.
_WORTH_A_THREAD_BYTES = 4 << 20

# Ways in which optimizers of the same parameters may take turns, at most.
_MOST_CHOICES = 16

# What only an optimizer step changes, or what follows one.
_STEADY = ("weights", "optimizer", "averages")


class Found:
    """The tensors of a state, by name: what a fingerprint is made of.

    Args:
        idle_sets: optimizers without which the state may have to be told as well.
    """

    def __init__(self, idle_sets: Iterable[frozenset[int]] = ()) -> None:
        self.weights: Named = components.weights()
        self.buffers: Named = STRUCTURE.buffers()
        self.averages: Named = components.averages()
        self.groups = components.all_groups()
        self._names = {id(parameter): name for name, parameter in self.weights}
        # An optimizer makes its state at its first step, which may be still to come.
        self._states = components.optimizer_states()
        self.rivals = LIVING.rivals()
        self._less = {
            idle: (
                components.weights(idle),
                STRUCTURE.buffers(idle),
                components.optimizer_states(idle),
                components.all_groups(idle),
            )
            for idle in idle_sets
        }

    @property
    def optimizer(self) -> list[tuple[str, dict[str, Any]]]:
        """Name and state of each parameter that has any now."""
        return components.optimizer_entries(self._names, self._states)

    def describe(self) -> tuple[dict[str, int], dict[str, str]]:
        """Return, for each component of tensors, how many and of which dtypes."""
        moments = [
            (name, value)
            for name, state in self.optimizer
            for value in state.values()
            if hasattr(value, "dtype") and bool(getattr(value, "shape", ()))
        ]
        counts: dict[str, int] = {}
        dtypes: dict[str, str] = {}
        for name, tensors in (
            ("weights", self.weights),
            ("buffers", self.buffers),
            ("optimizer", moments),
            ("averages", self.averages),
        ):
            if tensors:
                counts[name] = len(tensors)
                kinds = sorted({str(t.dtype).replace("torch.", "") for _, t in tensors})
                dtypes[name] = ",".join(kinds)
        return counts, dtypes

    def steady(self, name: str) -> str | None:
        """Return the fingerprint of a component that forward and backward leave alone."""
        if name == "weights":
            return components.sorted_digest(self.weights) if self.weights else None
        if name == "averages":
            return components.sorted_digest(self.averages) if self.averages else None
        return components.digest_optimizer(self.optimizer) if self.groups else None

    def without(self, idle: frozenset[int]) -> dict[str, str]:
        """Return what the optimizers' components are without those that are idle."""
        entries = components.optimizer_entries(
            self._names, components.optimizer_states(idle)
        )
        found = {"optimizer": components.digest_optimizer(entries)}
        rates = components.rates(components.all_groups(idle))
        schedulers = components.schedulers(idle)
        if rates:
            found["rates"] = components.digest_values(rates)
        if schedulers:
            found["scheduler"] = components.digest_values(schedulers)
        return found

    def less(self) -> dict[frozenset[int], dict[str, str]]:
        """Return what the components are if these optimizers train nothing any more."""
        found: dict[frozenset[int], dict[str, str]] = {}
        for idle, (named, buffers, states, groups) in self._less.items():
            names = {id(parameter): name for name, parameter in named}
            entries = components.optimizer_entries(names, states)
            found[idle] = {
                "weights": components.sorted_digest(named),
                "optimizer": components.digest_optimizer(entries),
            }
            if buffers:
                found[idle]["buffers"] = components.sorted_digest(buffers)
            for name, values in (
                ("rates", components.rates(groups)),
                ("scheduler", components.schedulers(idle)),
            ):
                if values:
                    found[idle][name] = components.digest_values(values)
        return found

    def is_worth_a_thread(self) -> bool:
        size = 0
        for _, tensor in self.weights:
            # Beside a device's own work, a thread's kernels would be queued among them.
            if tensor.device.type != "cpu" or hasattr(tensor, "_local_tensor"):
                return False
            size += tensor.numel() * tensor.element_size()
        return size >= _WORTH_A_THREAD_BYTES


class Sample:
    """Fingerprints of the components of one state, some perhaps still being made.

    Args:
        step: completed steps of this attempt.
        epoch: epochs that have ended.
    """

    def __init__(self, step: int, epoch: int) -> None:
        self.step = step
        self.epoch = epoch
        self.taken_s = monotonic()
        self.components: dict[str, str] = {}
        self.rng: dict[str, Any] = {}
        self.names: dict[str, int] = {}
        self.dtypes: dict[str, str] = {}
        self.written = False
        # Of optimizers that train the same parameters, those that are idle -> what the
        # components are without them; which they are is told by the step to come.
        self._without: dict[frozenset[int], dict[str, str]] = {}
        self._rivals: list[list[int]] = []
        # Optimizers that may have stepped their last -> the components without them.
        self.less: dict[frozenset[int], dict[str, str]] = {}
        self._thread: threading.Thread | None = None
        self._base: Sample | None = None

    def settle(self) -> None:
        """Wait until all fingerprints are there."""
        thread = self._thread
        if thread is not None:
            thread.join()
            self._thread = None
        base = self._base
        if base is not None:
            base.settle()
            for name in _STEADY:
                if name in base.components:
                    self.components[name] = base.components[name]
            for idle, found in self._without.items():
                found["optimizer"] = base._without.get(idle, found)["optimizer"]
            self._base = None

    def fill(
        self, found: Found, *, in_background: bool = False, base: Sample | None = None
    ) -> None:
        """Fingerprint everything.

        Args:
            found: the tensors.
            in_background: weights, optimizer state and averages will not change until
                `settle` is called, so that a thread may hash them meanwhile.
            base: an earlier sample since which they have not changed.
        """
        self.names, self.dtypes = found.describe()
        if base is not None:
            self._base = base
        elif in_background and found.is_worth_a_thread():
            self._thread = threading.Thread(
                target=self._hash_steady,
                args=(found,),
                name="spotchaos-probe",
                daemon=True,
            )
            self._thread.start()
        else:
            self._hash_steady(found)
        if found.buffers:
            self.components["buffers"] = components.sorted_digest(found.buffers)
        self._put("rates", components.rates(found.groups))
        self._put("scheduler", components.schedulers())
        self._put("scaler", components.scalers())
        self._rivals = found.rivals
        for idle in _idle_sets(found.rivals):
            self._without[idle] = found.without(idle)
        self.less = found.less()
        self.read_streams()

    def settle_rivals(self, turns: dict[int, int]) -> None:
        """Leave out optimizers whose parameters another one trains.

        Args:
            turns: index of an optimizer -> the moment of its last step. Of those that
                never stepped, the newest is what the program made to train with.
        """
        idle = frozenset(
            index
            for group in self._rivals
            for index in group
            if index != max(group, key=lambda i: (turns.get(i, -1), i))
        )
        found = self._without.get(idle)
        if found is not None:
            for name in ("optimizer", "rates", "scheduler"):
                self.components.pop(name, None)
            self.components.update(found)

    def read_streams(self) -> None:
        """Read the random streams of this moment."""
        self.rng = rng_streams.read_streams(
            components.generators(), OWN_GENERATORS.live()
        )
        for name, stream in self.rng.items():
            self.components[name] = rng_streams.fingerprint(stream)

    def _hash_steady(self, found: Found) -> None:
        for name in _STEADY:
            try:
                digest = found.steady(name)
                if digest is not None:
                    self.components[name] = digest
            except Exception as error:
                SESSION.trouble(f"fingerprint of {name}", error)

    def _put(self, name: str, values: list[Any]) -> None:
        if values:
            self.components[name] = components.digest_values(values)


def _idle_sets(rivals: list[list[int]]) -> list[frozenset[int]]:
    """Return every choice of one optimizer of each group, as the others: few at most."""
    if not rivals:
        return []
    chosen = itertools.islice(itertools.product(*rivals), _MOST_CHOICES)
    everyone = {index for group in rivals for index in group}
    return [frozenset(everyone.difference(one)) for one in chosen]


class Keeper:
    """Keeps hold of the newest state until its owners go, and fingerprints it then.

    A program whose model is a local variable has none left when the interpreter exits.
    Only tensors are kept, never modules: a wrapper for distributed training that is kept
    alive could hang the exit (facts.md 4).
    """

    # Programs that free a model of this size do so to have the memory.
    _MOST_BYTES = 2 << 30

    def __init__(self) -> None:
        self.last: Sample | None = None
        self._found: Found | None = None
        self._owners: list[Any] = []

    def is_of_all(self) -> bool:
        """Tell whether what was kept last is of the owners that live now, and of no other."""
        kept = [reference() for reference in self._owners]
        living = _owners()
        return len(kept) == len(living) and all(a is b for a, b in zip(kept, living))

    def keep(self, found: Found) -> None:
        """Keep `found` in place of what was kept before."""
        size = sum(t.numel() * t.element_size() for _, t in found.weights)
        self.last = None
        self._found = found if size <= self._MOST_BYTES else None
        self._owners = components.watched(_owners(), self._capture)

    def _capture(self, _reference: Any) -> None:
        found, self._found = self._found, None
        if found is None:
            return
        sample = Sample(SESSION.steps, 0)
        try:
            sample.fill(found)
        except Exception as error:
            SESSION.trouble("last state", error)
            return
        self.last = sample

    def drop(self) -> None:
        """Let go of everything."""
        self._found = self.last = None
        self._owners = []


def _owners() -> list[Any]:
    """Return what holds the state: its modules and optimizers."""
    return [*STRUCTURE.roots(), *(o for _, o in LIVING.live_optimizers())]


KEEPER = Keeper()
