"""The words for components, ranks and hints, as a person who trains models says them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from spotchaos.model import Attempt, ProgramException
from spotchaos.trace.tracebacks import FRAME, LIBRARY

# What gloo, NCCL and the TCP store say where the process at the other end has ended.
_PEER_IS_GONE = re.compile(
    r"closed by peer|reset by peer|[Bb]roken pipe|remote process exited"
    r"|[Ff]ailed to (recv|send), got 0 bytes",
)

NAMES: dict[str, str] = {
    "weights": "the weights",
    "buffers": "the module buffers",
    "optimizer": "the optimizer's state",
    "rates": "the learning rates",
    "scheduler": "the scheduler's position",
    "scaler": "the gradient scaler's state",
    "averages": "the averaged weights",
    "frozen": "the weights of a module that no optimizer trains (a teacher, a target"
    " network)",
    "rng.python": "Python's random stream",
    "rng.numpy": "NumPy's random stream",
    "rng.torch": "torch's random stream",
    "rng.cuda": "torch's CUDA random stream",
    "rng.generators": "the random generators of loaders and samplers",
    "rng.own": "the program's own random generators (of NumPy, Python or torch)",
}

# Components that a sentence speaks of in the plural.
PLURAL = frozenset(
    ("rng.generators", "rng.own", "weights", "buffers", "gradients", "samples")
)

# What to save and to restore, and where. The order within a resume matters: creating a
# loader's iterator draws from torch's stream, so streams come last.
HINTS: dict[str, str] = {
    "weights": "save model.state_dict() and load it before the first step, on every rank;"
    " check that load_state_dict was really called and is strict",
    "part of weights": "save the state_dict() of every module that is trained (a second"
    " network, a head, a loss with parameters of its own), and load each before the first"
    " step; load_state_dict(strict=True) tells what is missing",
    "tied": "tie them again after loading (head.weight = embedding.weight,"
    " model.tie_weights()), before the optimizer is built; load with load_state_dict,"
    " which keeps ties, instead of setting new parameters",
    "part of optimizer": "save the state_dict() of every optimizer, and load each after it"
    " was built on the loaded model, with the same parameters in it",
    "frozen": "save the state_dict() of that module too, and load it before the first step;"
    " what is trained once, or copied now and then, is part of the state like the rest",
    "buffers": "save model.state_dict(), which holds buffers (batch norm statistics), not"
    " only the parameters;"
    " register what must be kept with register_buffer(persistent=True)",
    "optimizer": "save optimizer.state_dict() with the model, and load it after the"
    " optimizer was built on the loaded model",
    "scheduler": "save scheduler.state_dict() with the optimizer, and load it after the"
    " scheduler was built",
    "rates": "save scheduler.state_dict() with the optimizer, or compute the rate from a"
    " step that is in the checkpoint",
    "scaler": "save scaler.state_dict() of the GradScaler, and load it on resume",
    "averages": "save the averaged model's state_dict(), its counter included, and load"
    " it on resume",
    "rng.python": "save random.getstate(), and random.setstate() it last of all, right"
    " before the first step after the resume",
    "rng.numpy": "save numpy.random.get_state(), and set_state() it last of all, right"
    " before the first step after the resume",
    "rng.torch": "save torch.get_rng_state(), and set_rng_state() it last of all, right"
    " before the first step after the resume",
    "rng.cuda": "save torch.cuda.get_rng_state_all(), and set_rng_state_all() it last of"
    " all, right before the first step after the resume",
    "rng.generators": "save generator.get_state() of each torch.Generator that shuffles"
    " or samples, and set_state() it before its next use",
    "rng.own": "save rng.bit_generator.state of each numpy.random.Generator, get_state() of"
    " each RandomState and torch.Generator and getstate() of each random.Random that the"
    " program made, and set it back on resume; or make the generator anew of the seed and"
    " the epoch or step",
    "order": "make the order a function of the seed and the epoch, save how many samples"
    " of the epoch were trained on, and skip exactly those on resume"
    " (a stateful loader or sampler does both)",
    "micro-batches": "save the counter that tells when enough micro-batches are together"
    " for a step, or compute it from a step that is in the checkpoint",
    "accumulated": "save only between an optimizer step and the next micro-batch, or begin"
    " each epoch with no gradients left over from the one before",
    "reduction": "DDP rebuilds its buckets after its first backward, and the order of"
    " additions with them: run two throw-away forward and backward passes (no step,"
    " gradients dropped, random streams put back) before the first step after a resume",
}


def name_of(component: str) -> str:
    """Return what a component is called in a sentence."""
    return NAMES.get(component, component)


def listed(items: Iterable[str]) -> str:
    """Return "a", "a and b" or "a, b and c"."""
    found = list(items)
    if len(found) < 2:
        return "".join(found)
    return f"{', '.join(found[:-1])} and {found[-1]}"


def on_ranks(ranks: Sequence[int], all_ranks: Collection[int]) -> str:
    """Return " on rank 1" and the like; nothing where all ranks, or the only one, do."""
    if len(ranks) == len(all_ranks):
        return ""
    return f" on rank{'s' if len(ranks) > 1 else ''} {listed(map(str, ranks))}"


def steps_of(count: int) -> str:
    """Return "1 step" or "n steps"."""
    return f"{count} step{'' if count == 1 else 's'}"


def lost(count: int) -> str:
    """Return "1 step was lost" or "n steps were lost"."""
    return f"{steps_of(count)} {'was' if count == 1 else 'were'} lost"


def place_of(tensor: str) -> str:
    """Return what a tensor is called: that of "weights/1:fc.bias" is of a second module."""
    component, _, name = tensor.partition("/")
    owner = "optimizer" if component == "optimizer" else "module"
    head, colon, rest = name.partition(":")
    if not (colon and head.isdigit()):
        return f"{name!r}"
    number = int(head) + 1
    if owner == "module" or number > 1:
        return f"{rest!r} of {owner} {number}"
    return f"{rest!r}"


def from_where(origin: int | str) -> str:
    """Return the end of a sentence that says whose value a component had."""
    if origin == "fresh":
        return "as at the start of a run"
    if origin == "foreign":
        return "equal to those of no step of the uninterrupted run"
    return f"of step {origin}"


def exception_of(attempt: Attempt) -> ProgramException | None:
    """Return the exception that ended an attempt: of the first rank that names one.

    Ranks that only say that another is gone tell less than that other.
    """
    ranks = attempt.trace.ranks
    found = [e for r in sorted(ranks) if (e := ranks[r].exception) is not None]
    return next((e for e in found if not _PEER_IS_GONE.search(e.message)), None) or (
        found[0] if found else None
    )


def waits_in(stacks: str) -> list[tuple[str, str, int]]:
    """Return who waits where, of each process that told: who, file, line.

    The innermost frame of the program's own is named; frames of libraries say how it
    waits, not for what.
    """
    found = []
    for part in stacks.split("\n\n"):
        head, _, rest = part.partition(":\n")
        frames = [(m["file"], int(m["line"])) for m in FRAME.finditer(rest or part)]
        own = [f for f in frames if not LIBRARY.search(f[0])]
        if frames:
            found.append((head.partition(",")[0], *(own or frames)[0]))
    return found


def where_of(exception: ProgramException | None) -> dict[str, object] | None:
    """Return the place of an exception as findings carry it."""
    if exception is None or exception.file is None:
        return None
    return {"file": exception.file, "line": exception.line}


def ending_of(attempt: Attempt) -> str:
    """Say how an attempt ended, with its own last words."""
    exception = exception_of(attempt)
    if exception is not None:
        words = exception.message.strip().splitlines()
        return f"{exception.type}: {words[0]}" if words else exception.type
    lines = attempt.output_tail.strip().splitlines()
    said = f", its last line was {lines[-1].strip()!r}" if lines else ""
    return f"status {attempt.exit_code}{said}"
