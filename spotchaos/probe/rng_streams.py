"""Reading random streams without moving them.

A stream of a Mersenne twister is [block, next block, position]: a digest of its 624
words, that of the words which follow, and how many of the words are used up. Python,
numpy and torch share the algorithm, so that one twister of ours, which is no one's
stream, works out the next block for all of them.
"""

from __future__ import annotations

import sys
from _blake2 import blake2b
from _random import Random
from struct import Struct
from typing import TYPE_CHECKING

from spotchaos.probe.fingerprint import content_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    # block, next block or None, position
    Stream = tuple[str, str | None, int]

_WORDS = 624
_PACKED = Struct("<624I")
# at::CPUGeneratorImplState: seed, left, seeded, next, 624 words of 64 bits, then what is
# left over from drawing normals in pairs (double x, y, rho, valid; float, valid).
_TORCH = Struct("<QiiQ")
_TORCH_WORDS = Struct("<624Q")
_TORCH_NORMAL = Struct("<dddixxxxf?")
_twister = Random()
_following: dict[str, str] = {}


def digest(content: bytes) -> str:
    """Return 16 hexadecimal digits for a few bytes."""
    return blake2b(content, digest_size=8).hexdigest()


def read_streams(generators: list[Any], own: Sequence[Any] = ()) -> dict[str, Stream]:
    """Return all streams that this process has.

    Args:
        generators: those of loaders and samplers, in order of creation.
        own: NumPy's, Python's and torch's that the program made, in any order.
    """
    streams: dict[str, Stream] = {}
    module = sys.modules.get("random")
    if module is not None and hasattr(module, "_inst"):
        streams["rng.python"] = _read_python(module.getstate())
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and hasattr(numpy, "get_state"):
        stream = _read_numpy(numpy.get_state())
        if stream is not None:
            streams["rng.numpy"] = stream
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "default_generator"):
        streams["rng.torch"] = _read_torch(torch.default_generator)
        cuda = _read_cuda(torch)
        if cuda is not None:
            streams["rng.cuda"] = cuda
    if generators:
        streams["rng.generators"] = _read_generators(generators)
    if own:
        streams["rng.own"] = _read_own(own)
    return streams


def fingerprint(stream: Stream) -> str:
    """Return "block.position"."""
    return f"{stream[0]}.{stream[2]}"


def _mersenne(words: tuple[int, ...], position: int, pending: bytes) -> Stream:
    block = digest(_PACKED.pack(*words))
    following = _following.get(block)
    if following is None:
        _twister.setstate((*words, _WORDS))
        _twister.getrandbits(32)
        following = digest(_PACKED.pack(*_twister.getstate()[:_WORDS]))
        if len(_following) > 64:
            _following.clear()
        _following[block] = following
    # A normal that was drawn and waits to be handed out is part of what comes next.
    suffix = "+" + digest(pending)[:8] if pending else ""
    return block + suffix, following, position


def _read_python(state: Any) -> Stream:
    words, pending = state[1], state[2]
    waiting = repr(pending).encode() if pending is not None else b""
    return _mersenne(words[:_WORDS], words[_WORDS], waiting)


def _read_numpy(state: Any) -> Stream | None:
    if state[0] != "MT19937":
        return digest(repr(state).encode()), None, 0
    waiting = repr(float(state[4])).encode() if state[3] else b""
    return _mersenne(tuple(state[1].tolist()), int(state[2]), waiting)


def _read_torch(generator: Any) -> Stream:
    raw = content_of(generator.get_state())
    if len(raw) < _TORCH.size + _TORCH_WORDS.size + _TORCH_NORMAL.size:
        return digest(raw), None, 0
    _seed, left, _seeded, _next = _TORCH.unpack_from(raw)
    words = _TORCH_WORDS.unpack_from(raw, _TORCH.size)
    x, y, rho, valid, single, single_valid = _TORCH_NORMAL.unpack_from(
        raw, _TORCH.size + _TORCH_WORDS.size
    )
    waiting = b""
    if valid or single_valid:
        waiting = repr((x, y, rho) if valid else single).encode()
    # `left` words are to come, one of them being the twist itself: 1 means used up.
    return _mersenne(words, _WORDS + 1 - left, waiting)


def _read_cuda(torch: Any) -> Stream | None:
    cuda = torch.cuda
    if not cuda.is_initialized():
        return None
    parts = []
    position = 0
    for generator in cuda.default_generators:
        state = content_of(generator.get_state())
        # Philox: the seed, then the offset, which only grows.
        parts.append(state[:8])
        position += int.from_bytes(state[8:16], "little")
    return digest(b"".join(parts)), None, position


def _read_own(generators: Sequence[Any]) -> Stream:
    found = {fingerprint(stream): stream for stream in map(_read_one, generators)}
    if len(found) == 1:
        return next(iter(found.values()))
    return digest(" ".join(sorted(found)).encode()), None, 0


def _read_one(generator: Any) -> Stream:
    if hasattr(generator, "device"):
        return _read_of_torch(generator)
    if hasattr(generator, "getstate"):
        return _read_python(generator.getstate())
    if hasattr(generator, "get_state"):
        stream = _read_numpy(generator.get_state())
        if stream is not None:
            return stream
    return digest(_spelled(generator.bit_generator.state).encode()), None, 0


def _spelled(state: Any) -> str:
    """Spell the state of a bit generator: numbers, texts and arrays in dicts."""
    if isinstance(state, dict):
        return repr([(key, _spelled(state[key])) for key in sorted(state)])
    if hasattr(state, "tobytes"):
        return digest(state.tobytes())
    return repr(state)


def _read_of_torch(generator: Any) -> Stream:
    if generator.device.type == "cpu":
        return _read_torch(generator)
    return digest(content_of(generator.get_state())), None, 0


def _read_generators(generators: list[Any]) -> Stream:
    streams = list(map(_read_of_torch, generators))
    if len(streams) == 1:
        return streams[0]
    return digest(" ".join(map(fingerprint, streams)).encode()), None, 0
