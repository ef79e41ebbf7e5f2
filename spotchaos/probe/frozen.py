"""Modules that no optimizer trains while they are called: a teacher, a target network.

Their weights decide the loss and are in no optimizer. Which of them a step used is known
by their calls; what a step of the uninterrupted run used must be there again after a
resume. Copies that are averages are told apart from them by the reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotchaos.probe.fingerprint import Digest
from spotchaos.probe.structure import named_tensors

if TYPE_CHECKING:
    from typing import Any

# Of all that one step calls: a large backbone that is never trained comes from its file.
_MOST_BYTES = 64 << 20


class Frozen:
    """What was called since the last step and is trained by nobody, fingerprinted once."""

    def __init__(self) -> None:
        self._seen: dict[int, list[str] | None] = {}
        self._bytes = 0

    def see(self, module: Any) -> None:
        """Note the call of a module that no optimizer at work trains."""
        if id(module) in self._seen:
            return
        self._seen[id(module)] = None
        named = list(named_tensors(module, "_parameters"))
        self._bytes += sum(t.numel() * t.element_size() for _, t in named)
        if not named or self._bytes > _MOST_BYTES:
            return
        key, content = Digest(), Digest()
        key.text(type(module).__qualname__)
        try:
            for name, tensor in named:
                key.text(f"{name} {tuple(tensor.shape)}")
                content.tensor(tensor)
        except Exception:
            return  # a tensor without content (meta, fake, within vmap) explains nothing
        self._seen[id(module)] = [key.hex(), content.hex()]

    def take(self) -> list[list[str]]:
        """Return [kind, fingerprint] of each, in the order of their first calls."""
        found = [pair for pair in self._seen.values() if pair is not None]
        self._seen, self._bytes = {}, 0
        return found
