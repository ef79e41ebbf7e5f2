"""Optimizer state by parameter name, with the dtype it had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from spotchaos.errors import CheckpointError
from spotchaos.training.plain import from_plain, to_plain

# Of the order of the parameters, not of their values.
_POSITIONAL = ("params", "param_names")


def capture_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module
) -> dict[str, Any]:
    """Return the state of an optimizer, keyed by the names of the model's parameters.

    Returns:
        `moments`: for each parameter that has been stepped its values; `groups`: for each
        group its settings and, sorted, the names of its parameters; `rest`: what the
        optimizer keeps besides.
    """
    state = optimizer.state_dict()
    groups = _names(optimizer, model)
    names = [name for group in groups for name in group]
    moments = {names[position]: values for position, values in state["state"].items()}
    return {
        "moments": to_plain(moments, "optimizer"),
        "groups": [
            {
                "names": sorted(group),
                "settings": to_plain(
                    {k: v for k, v in settings.items() if k not in _POSITIONAL},
                    "optimizer",
                ),
            }
            for group, settings in zip(groups, state["param_groups"], strict=True)
        ],
        "rest": to_plain(
            {k: v for k, v in state.items() if k not in ("state", "param_groups")},
            "optimizer",
        ),
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    saved: Mapping[str, Any],
    name: str,
) -> None:
    """Put the state back, each moment to the parameter of its name and in its own dtype.

    `Optimizer.load_state_dict` matches by position and casts to the parameters' dtype:
    after a change of order it maps moments to the wrong weights, and it rounds 32-bit
    moments of 16-bit weights.

    Raises:
        CheckpointError: it is another optimizer than the saved one.
    """
    refuse_other_optimizer(optimizer, model, saved, name)
    groups = _names(optimizer, model)
    names = [each for group in groups for each in group]
    moments = {
        position: from_plain(saved["moments"][each])
        for position, each in enumerate(names)
        if each in saved["moments"]
    }
    live = optimizer.state_dict()["param_groups"]
    settings = [
        {**from_plain(theirs["settings"]), **_positional(ours)}
        for theirs, ours in zip(saved["groups"], live, strict=True)
    ]
    optimizer.load_state_dict(
        {"state": moments, "param_groups": settings, **from_plain(saved["rest"])}
    )
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for position, values in moments.items():
        cast = optimizer.state[parameters[position]]
        for key, value in values.items():
            if isinstance(value, torch.Tensor) and cast[key].dtype != value.dtype:
                cast[key] = value.detach().clone().to(cast[key].device)


def _names(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[list[str]]:
    """Name the parameters of each group; one that is not the model's by its position."""
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    names: list[list[str]] = []
    position = 0
    for group in optimizer.param_groups:
        names.append([])
        for parameter in group["params"]:
            names[-1].append(known.get(id(parameter), f"#{position}"))
            position += 1
    return names


def _positional(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: group[key] for key in _POSITIONAL if key in group}


def refuse_other_optimizer(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    saved: Mapping[str, Any],
    name: str,
) -> None:
    """Refuse a state that is not of this optimizer, before anything is changed.

    Raises:
        CheckpointError: it has other parameters, or settings of another kind.
    """
    _refuse_other_parameters(_names(optimizer, model), saved["groups"], name)
    for ours, theirs in zip(optimizer.param_groups, saved["groups"], strict=True):
        wanted = ours.keys() - set(_POSITIONAL)
        odd = sorted(wanted ^ theirs["settings"].keys())
        if odd:
            raise CheckpointError(
                f"optimizer {name!r} is of another kind than the checkpoint's: only one"
                f" of them has {odd[:3]}",
                hint="build the optimizer that the run was saved with",
            )


def _refuse_other_parameters(
    ours: list[list[str]], theirs: list[Mapping[str, Any]], optimizer: str
) -> None:
    if len(ours) != len(theirs):
        raise CheckpointError(
            f"optimizer {optimizer!r} has {len(ours)} parameter groups, the checkpoint "
            f"has {len(theirs)}",
            hint="build the optimizer with the groups that the run was saved with",
        )
    for number, (new, old) in enumerate(zip(ours, theirs, strict=True)):
        odd = sorted(set(new) ^ set(old["names"]))
        if odd:
            raise CheckpointError(
                f"group {number} of optimizer {optimizer!r} has other parameters than "
                f"the checkpoint: {odd[:3]}",
                hint="build the optimizer with the parameters that the run was saved with",
            )
