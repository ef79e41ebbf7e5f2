"""Where each component of the training state is found, and its fingerprint."""

from __future__ import annotations

import re
import weakref
from typing import TYPE_CHECKING

from spotchaos.probe.averages import AVERAGES
from spotchaos.probe.fingerprint import Digest
from spotchaos.probe.structure import LIVING, STRUCTURE
from spotchaos.probe.values import is_tensor, number_of, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Numbers in a group that only say how other numbers came about: a scheduler made with
# `last_epoch=9` leaves others there and gives the same rates.
_BOOKKEEPING = frozenset(
    ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr")
)
# What decides a scheduler's next rates besides the rates themselves.
_COUNTERS = ("last_epoch", "best", "num_bad_epochs", "cooldown_counter", "T_cur", "T_i")

_OWNER = re.compile(r"\d+:|#\d+\.(?=\d+\.)")
_BY_CONTENT = re.compile(r"#\d+")


class Instances:
    """Live instances of one kind, in order of creation."""

    def __init__(self) -> None:
        self._known: list[weakref.ref[Any]] = []

    def see(self, instance: Any) -> None:
        if all(known() is not instance for known in self._known):
            self._known.append(weakref.ref(instance))

    def live(self) -> list[Any]:
        self._known = [known for known in self._known if known() is not None]
        return [
            found for found in (known() for known in self._known) if found is not None
        ]


SCHEDULERS = Instances()
SCALERS = Instances()
LOADERS = Instances()


def sorted_digest(tensors: list[tuple[str, Any]]) -> str:
    """Digest named tensors, by name."""
    digest = Digest()
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        digest.text(name)
        digest.tensor(tensor)
    return digest.hex()


def tensor_digests() -> dict[str, str]:
    """Return a digest of each tensor of weights and optimizer state, by its name."""
    named = weights()
    names = {id(parameter): name for name, parameter in named}
    tensors = [(f"weights/{name}", parameter) for name, parameter in named]
    tensors += [
        (f"optimizer/{name}.{key}", value)
        for name, state in optimizer_entries(names)
        for key, value in state.items()
        if is_tensor(value)
    ]
    found = {}
    for name, tensor in tensors:
        digest = Digest()
        digest.tensor(tensor)
        found[name] = digest.hex()
    return found


def weights(idle: frozenset[int] = frozenset()) -> list[tuple[str, Any]]:
    """Return all parameters of what is trained, and those that are in no live module."""
    named = STRUCTURE.parameters(idle)
    known = {id(parameter) for _, parameter in named}
    for key, parameter in loose_parameters(known, idle):
        named.append((key, parameter))
    return named


def loose_parameters(
    known: set[int], idle: frozenset[int] = frozenset()
) -> list[tuple[str, Any]]:
    """Return the tensors that are trained and that no live module names.

    They are named by their place in their optimizer. Where there are several optimizers,
    or none as yet, a place says nothing (a library may make one for each parameter, in
    the order of a set, once it first steps): then by the order of their content.
    """
    found: dict[int, tuple[str, Any]] = {}
    for number, leaf in enumerate(LIVING.leaves):
        found.setdefault(id(leaf), (f"#leaf.{number}", leaf))
    owners = 0
    for index, optimizer in LIVING.placed_optimizers(idle):
        is_loose = False
        for number, group in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                if id(parameter) not in known:
                    name = f"#{index}.{number}.{place}"
                    found.setdefault(id(parameter), (name, parameter))
                    is_loose = True
        owners += is_loose
    if LIVING.leaves or owners > 1:
        ordered = sorted((p for _, p in found.values()), key=_content)
        return [(f"#{place}", parameter) for place, parameter in enumerate(ordered)]
    return list(found.values())


def _content(tensor: Any) -> tuple[tuple[int, ...], str]:
    digest = Digest()
    digest.tensor(tensor)
    return tuple(tensor.shape), digest.hex()


def shared_gradients(named: list[tuple[str, Any]]) -> list[tuple[str, Any]] | None:
    """Return (name, gradient) of all that is trained, where no module names any of it.

    None where one does, or one optimizer has it all: its own gradients are told then.

    Args:
        named: what `weights` returns now.
    """
    if not LIVING.leaves and len(LIVING.placed_optimizers()) < 2:
        return None
    if not all(_BY_CONTENT.fullmatch(name) for name, _ in named):
        return None
    return [(name, p.grad) for name, p in named if p.grad is not None]


def gradients_of(optimizer: Any, names: dict[int, str]) -> list[tuple[str, Any]]:
    """Return (name, gradient) of what `optimizer` is about to apply."""
    found = []
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if parameter.grad is not None:
                name = names.get(id(parameter), f"#{number}.{place}")
                found.append((name, parameter.grad))
    return _without_owner(found)


def _without_owner(named: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return tensors without the number of their module, or optimizer, if all have one.

    It depends on what else is alive: a teacher, an optimizer that has stepped its last.
    """
    owners = {match and match[0] for match in (_OWNER.match(n) for n, _ in named)}
    if len(owners) != 1:
        return named
    owner = owners.pop()
    if owner is None:
        return named
    return [(name[len(owner) :], tensor) for name, tensor in named]


def optimizer_states(idle: frozenset[int] = frozenset()) -> list[tuple[int, Any]]:
    """Return (place, state by parameter) of live optimizers, not their owners."""
    return [(i, getattr(o, "state", {})) for i, o in LIVING.placed_optimizers(idle)]


def optimizer_entries(
    names: dict[int, str], states: list[tuple[int, Any]] | None = None
) -> list[tuple[str, dict[str, Any]]]:
    """Return (name of optimizer and parameter, its state) for all that have any.

    Args:
        names: id of a parameter -> its name.
        states: what `optimizer_states` returned; None: of this moment.
    """
    entries = []
    for index, by_parameter in optimizer_states() if states is None else states:
        # A copy: a background save may fill a defaultdict while we look.
        for parameter, state in list(by_parameter.items()):
            if state:
                name = names.get(
                    id(parameter),
                    str(parameter)[:80] if isinstance(parameter, str) else "?",
                )
                # What only its content tells may be in another optimizer elsewhere.
                prefix = "" if _BY_CONTENT.fullmatch(name) else f"{index}:"
                entries.append((prefix + name, state))
    return sorted(entries, key=lambda entry: entry[0])


def digest_optimizer(entries: list[tuple[str, dict[str, Any]]]) -> str:
    """Digest the entries that `optimizer_entries` returned."""
    digest = Digest()
    for name, state in entries:
        digest.text(name)
        put(digest, state)
    return digest.hex()


def all_groups(
    idle: frozenset[int] = frozenset(),
) -> list[tuple[int, list[dict[str, Any]]]]:
    """Return (place, groups) of live optimizers."""
    placed = LIVING.placed_optimizers(idle)
    return [(place, list(o.param_groups)) for place, o in placed]


def rates(optimizers: list[tuple[int, list[dict[str, Any]]]]) -> list[Any]:
    """Return the numeric hyper-parameters of all groups that `all_groups` returned."""
    found = []
    for index, groups in optimizers:
        for number, group in enumerate(groups):
            for key in sorted(group):
                value = group[key]
                if key == "params" or key in _BOOKKEEPING or isinstance(value, bool):
                    continue
                several = value if isinstance(value, (tuple, list)) else [value]
                spelled = [s for s in map(number_of, several) if s is not None]
                if spelled:
                    found.append([index, number, key, *spelled])
    return found


def watched(owners: list[Any], action: Callable[[Any], None]) -> list[Any]:
    """Return weak references that call `action` when one of `owners` goes."""
    return [weakref.ref(owner, action) for owner in owners]


def schedulers(idle: frozenset[int] = frozenset()) -> list[Any]:
    """Return what decides the next rates, for each live scheduler of a live optimizer."""
    found = []
    working = {id(o) for _, o in LIVING.working_optimizers()}
    at_rest = {
        id(o)
        for index, o in LIVING.live_optimizers()
        if index in idle or id(o) not in working
    }
    for scheduler in SCHEDULERS.live():
        state = scheduler.__dict__
        if id(state.get("optimizer")) in at_rest:
            continue
        counters = [
            [c, number_of(state[c])] for c in _COUNTERS if state.get(c) is not None
        ]
        if counters:
            found.append([type(scheduler).__name__, counters])
    return found


def scalers() -> list[Any]:
    """Return scale and growth tracker of each enabled gradient scaler."""
    found = []
    for scaler in SCALERS.live():
        if not getattr(scaler, "_enabled", False):
            continue
        scale = scaler._scale if scaler._scale is not None else scaler._init_scale
        tracker = scaler._growth_tracker
        if tracker is None:
            tracker = scaler._init_growth_tracker
        found.append([number_of(scale), number_of(tracker)])
    return found


def digest_values(values: list[Any]) -> str:
    """Digest plain values in their canonical spelling."""
    digest = Digest()
    put(digest, values)
    return digest.hex()


def averages() -> list[tuple[str, Any]]:
    """Return the tensors of averaged copies of the weights, with their counters."""
    return AVERAGES.tensors(STRUCTURE.roots())


def generators() -> list[Any]:
    """Return the generators of live loaders and their samplers, each once."""
    found: dict[int, Any] = {}
    for loader in LOADERS.live():
        state = loader.__dict__
        samplers = [state.get("sampler"), state.get("batch_sampler")]
        samplers += [getattr(s, "sampler", None) for s in samplers]
        for owner in (loader, *samplers):
            generator = getattr(owner, "generator", None)
            if generator is not None and hasattr(generator, "get_state"):
                found.setdefault(id(generator), generator)
    return list(found.values())
