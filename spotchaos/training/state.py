"""Everything that decides the next step: captured together, put back in the right order."""

from __future__ import annotations

import itertools
from collections.abc import KeysView, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from spotchaos.errors import CheckpointError
from spotchaos.training.optimizers import (
    capture_optimizer,
    refuse_other_optimizer,
    restore_optimizer,
)
from spotchaos.training.plain import first_difference, from_plain, to_plain
from spotchaos.training.rng import capture_rng, mix, restore_rng, seed_everything

FORMAT = 1


class Stateful(Protocol):
    """Has a state that can be taken out and put back."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


class TrainingState:
    """The whole state of a training program, as one value.

    Args:
        model: the model, wrapped (DDP, compiled) or not; saved without its wrappers.
        optimizers: one, or several by name. Moments keep their dtype, and are matched to
            parameters by name.
        schedulers: one, or several by name; restored after the optimizers, whose rates
            they are consistent with.
        scaler: a GradScaler.
        averages: averaged copies of the model, by name, counters included.
        sampler: the data position.
        generators: further generators of torch, by name.
        extras: anything else with a state, by name: counters of patience, a replay
            buffer. Rank 0's is kept.
        own: likewise, but each rank's own is kept.
    """

    def __init__(
        self, *, model: nn.Module,
        optimizers: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer] | None = None,
        schedulers: Stateful | Mapping[str, Stateful] | None = None,
        scaler: Stateful | None = None,
        averages: Mapping[str, Stateful] | None = None,
        sampler: Stateful | None = None,
        generators: Mapping[str, torch.Generator] | None = None,
        extras: Mapping[str, Stateful] | None = None,
        own: Mapping[str, Stateful] | None = None,
    ) -> None:  # fmt: skip
        self.step = 0
        self._model = model
        self._optimizers = _by_name(optimizers)
        # The order here is the order of restoring: what is built on something comes later.
        self._parts: dict[str, dict[str, Stateful]] = {
            "averages": dict(averages or {}),
            "schedulers": _by_name(schedulers),
            "scaler": _by_name(scaler),
            "sampler": _by_name(sampler),
            "extras": dict(extras or {}),
        }
        self._generators = dict(generators or {})
        self._own = dict(own or {})

    def mine(self) -> dict[str, Any]:
        """Return what only this rank has: random streams and its own extras."""
        own = {
            name: to_plain(part.state_dict(), name) for name, part in self._own.items()
        }
        return {"rng": capture_rng(self._generators), "own": own}

    def capture(
        self, ranks: Sequence[Mapping[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Return the state at this step boundary.

        Tensors in it are the live ones: save it, or copy it, before the next step.

        Args:
            ranks: what `mine` returned on each rank, in order; this one's by default.

        Raises:
            CheckpointError: a component's state cannot be read back from a checkpoint.
        """
        model = unwrapped(self._model)
        state: dict[str, Any] = {
            "format": FORMAT,
            "step": self.step,
            "model": to_plain(model.state_dict(), "model"),
            "loose_buffers": _loose_buffers(model),
            "optimizers": {
                name: capture_optimizer(optimizer, model)
                for name, optimizer in self._optimizers.items()
            },
            **self.capture_parts(),
        }
        state["ranks"] = [self.mine()] if ranks is None else list(ranks)
        return state

    def capture_parts(self) -> dict[str, Any]:
        """Return what is neither the model's, nor an optimizer's, nor one rank's own.

        For who keeps those elsewhere, as shards.
        """
        return {
            kind: {
                name: to_plain(part.state_dict(), f"{kind}.{name}")
                for name, part in parts.items()
            }
            for kind, parts in self._parts.items()
        }

    def restore_parts(self, state: Mapping[str, Any]) -> None:
        """Put back what `capture_parts` returned.

        Raises:
            CheckpointError: it has other components.
        """
        self._refuse_other_parts(state, {})
        for kind in self._parts:
            self._restore_kind(kind, state)

    def _restore_kind(self, kind: str, state: Mapping[str, Any]) -> None:
        for name, part in self._parts[kind].items():
            part.load_state_dict(from_plain(state[kind][name]))

    def restore_mine(self, mine: Mapping[str, Any] | None, rank: int) -> None:
        """Put back what `mine` returned, last of all; None for a rank that had nothing."""
        for name, part in self._own.items():
            if mine is not None:
                part.load_state_dict(from_plain(mine["own"][name]))
        if mine is None:
            seed_everything(mix(self.step, rank))
        else:
            restore_rng(mine["rng"], self._generators)

    def restore(
        self, state: Mapping[str, Any], *, rank: int = 0, world_size: int = 1,
        allow_inexact: bool = False,
    ) -> None:  # fmt: skip
        """Put a captured state back, random streams last, and check that it took.

        What is seen not to fit is refused before anything is changed.

        Args:
            state: from `capture`, through a checkpoint or not.
            rank: this rank.
            world_size: ranks of this run.
            allow_inexact: take a state of another number of ranks, so that the bits of
                the uninterrupted run are lost; ranks that had no streams get new ones.

        Raises:
            CheckpointError: another number of ranks, another model, another set of
                components, or a component that did not take its state.
        """
        self._refuse_misfit(state, world_size, allow_inexact=allow_inexact)
        theirs = state["ranks"]
        mine = theirs[rank] if rank < len(theirs) else None
        if mine is not None:
            self._refuse_other_streams(mine)
        model = unwrapped(self._model)
        _refuse_other_loose_buffers(model, state["loose_buffers"])
        self._restore_kind("sampler", state)  # the one that refuses by itself
        model.load_state_dict(state["model"])
        _restore_loose_buffers(model, state["loose_buffers"])
        for name, optimizer in self._optimizers.items():
            restore_optimizer(optimizer, model, state["optimizers"][name], name)
        for kind in self._parts:
            if kind != "sampler":
                self._restore_kind(kind, state)
        self.step = int(state["step"])
        self.restore_mine(mine, rank)
        self._check(state, mine)

    def _refuse_misfit(
        self, state: Any, world_size: int, *, allow_inexact: bool
    ) -> None:
        wanted = {"step", "model", "loose_buffers", "optimizers", "ranks", *self._parts}
        lacking = sorted(
            wanted - state.keys() if isinstance(state, Mapping) else wanted
        )
        if lacking:
            raise CheckpointError(
                f"this is no captured state: it lacks {lacking[:3]}",
                hint="restore what `capture` returned; convert a checkpoint of another"
                " program first",
            )
        if state.get("format", 0) > FORMAT:
            raise CheckpointError(
                f"the state has format {state['format']}, this release reads {FORMAT}",
                hint="resume with the release of spotchaos that wrote it, or a newer one",
            )
        if not allow_inexact:
            refuse_other_world(len(state["ranks"]), world_size)
        model = unwrapped(self._model)
        _refuse_other_model(model, state["model"])
        self._refuse_other_parts(state, {"optimizers": self._optimizers.keys()})
        for name, optimizer in self._optimizers.items():
            refuse_other_optimizer(optimizer, model, state["optimizers"][name], name)
        for name, scheduler in self._parts["schedulers"].items():
            _refuse_other_scheduler(scheduler, state["schedulers"][name], name)

    def _refuse_other_parts(
        self, state: Mapping[str, Any], more: Mapping[str, KeysView[str]]
    ) -> None:
        ours = {**more, **{kind: parts.keys() for kind, parts in self._parts.items()}}
        for kind, names in ours.items():
            if names != state[kind].keys():
                raise CheckpointError(
                    f"the checkpoint has {kind} {sorted(state[kind])}, this program "
                    f"has {sorted(names)}",
                    hint="resume with the components that the run was saved with",
                )

    def _refuse_other_streams(self, mine: Mapping[str, Any]) -> None:
        """Refuse other generators, or other components of this rank's own."""
        for what, ours, theirs in (
            ("generators", self._generators.keys(), mine["rng"]["generators"].keys()),
            ("components of a rank's own", self._own.keys(), mine["own"].keys()),
        ):
            if ours != theirs:
                raise CheckpointError(
                    f"the checkpoint has {what} {sorted(theirs)}, this program has"
                    f" {sorted(ours)}",
                    hint="give the ones that the run was saved with",
                )

    def _check(self, state: Mapping[str, Any], mine: Mapping[str, Any] | None) -> None:
        now = self.capture([mine or {}])
        wanted = {**state, "ranks": [mine or {}]}
        place = first_difference(wanted, now, "state")
        if place is None and mine is not None:
            place = first_difference(mine, self.mine(), "rank")
        if place is not None:
            raise CheckpointError(
                f"{place} did not take the value that was saved",
                hint="its load_state_dict changes or ignores what it is given",
            )


def refuse_other_world(ranks: int, world_size: int) -> None:
    """Refuse a checkpoint of another number of ranks, which adds in another order.

    Raises:
        CheckpointError: `ranks`, which wrote it, are not `world_size`.
    """
    if ranks != world_size:
        raise CheckpointError(
            f"the checkpoint was written by {ranks} ranks, this run has {world_size}",
            hint=f"start {ranks} ranks, use virtual workers from the start, or allow "
            "an inexact resume",
        )


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the user's own module: without DDP, and without what compile puts around."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(
            model, nn.parallel.DistributedDataParallel | nn.DataParallel
        ):
            inner = model.module
        if inner is None:
            return model
        model = inner


def _by_name(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) else {"main": given}


def _refuse_other_model(model: nn.Module, saved: Mapping[str, Any]) -> None:
    ours = model.state_dict()
    missing = sorted(ours.keys() - saved.keys())
    surplus = sorted(saved.keys() - ours.keys())
    if missing or surplus:
        raise CheckpointError(
            f"the checkpoint is of another model: it lacks {missing[:3]}, "
            f"it has beyond ours {surplus[:3]}",
            hint="build the model that the run was saved with",
        )
    for name, tensor in ours.items():
        theirs = saved[name]
        if not isinstance(tensor, torch.Tensor) or is_lazy(tensor):
            continue
        if (tensor.shape, tensor.dtype) != (theirs.shape, theirs.dtype):
            raise CheckpointError(
                f"the checkpoint is of another model: {name} is {tuple(theirs.shape)} "
                f"{theirs.dtype}, ours is {tuple(tensor.shape)} {tensor.dtype}",
                hint="build the model that the run was saved with",
            )


def _loose_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that state_dict leaves out."""
    kept = model.state_dict().keys()
    return {name: b for name, b in model.named_buffers() if name not in kept}


def _refuse_other_scheduler(scheduler: Stateful, saved: Any, name: str) -> None:
    """Refuse the state of another kind of scheduler, which torch's own take silently."""
    if not isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
        return
    lacking = sorted(scheduler.state_dict().keys() - saved.keys())
    if lacking:
        raise CheckpointError(
            f"scheduler {name!r} is of another kind than the checkpoint's, which lacks"
            f" {lacking[:3]}",
            hint="build the scheduler that the run was saved with",
        )


def _refuse_other_loose_buffers(
    model: nn.Module, saved: Mapping[str, torch.Tensor]
) -> None:
    modules = dict(model.named_modules())
    for name in saved:
        path, _, last = name.rpartition(".")
        owner = modules.get(path)
        # One that the first forward makes is not there yet.
        if owner is None or (
            hasattr(owner, last) and last not in vars(owner)["_buffers"]
        ):
            raise CheckpointError(
                f"the checkpoint is of another model: ours has no buffer {name}",
                hint="build the model that the run was saved with",
            )


def _restore_loose_buffers(model: nn.Module, saved: Mapping[str, torch.Tensor]) -> None:
    some = next(itertools.chain(model.parameters(), model.buffers()), None)
    for name, value in saved.items():
        path, _, last = name.rpartition(".")
        owner = model.get_submodule(path)
        # Replaced rather than filled: a cache may have grown since the model was built,
        # or be made by the first forward.
        live = vars(owner)["_buffers"].get(last)
        like = some if live is None else live
        value = value.clone().to("cpu" if like is None else like.device)
        owner.register_buffer(last, value, persistent=False)
