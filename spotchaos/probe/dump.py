"""Writing the tensors of one step, for the replay that tells which one differs.

A dump is raw bytes and an index: `{"step", "component", "data", "tensors": [{"name",
"dtype", "shape", "offset", "bytes"}]}`. It is read with numpy and without torch; a dtype
that numpy lacks is stored as unsigned integers of its size and named in `torch_dtype`.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from spotchaos.probe import components
from spotchaos.probe.fingerprint import buffer_of, plain_parts
from spotchaos.probe.session import SESSION
from spotchaos.probe.structure import STRUCTURE
from spotchaos.probe.values import is_tensor

if TYPE_CHECKING:
    from typing import Any

_NUMPY = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "int64": "<i8", "int32": "<i4",
    "int16": "<i2", "int8": "|i1", "uint8": "|u1", "bool": "|b1", "complex64": "<c8",
    "complex128": "<c16", "bfloat16": "<u2", "uint16": "<u2", "uint32": "<u4", "uint64": "<u8",
}  # fmt: skip

_OF_STATE = ("weights", "buffers", "optimizer", "averages")


class Dumps:
    """Writes what the orders ask for; does nothing without them."""

    def __init__(self) -> None:
        self._parts: dict[str, int] = {}

    def wants(self, step: int, component: str) -> bool:
        wanted = SESSION.orders["dump"]
        if not wanted:
            return False
        if component == "weights" and step in wanted.get("weights_at", ()):
            return True
        at = wanted.get("step")
        if component in _OF_STATE:
            at = wanted.get("state_of", at)
        return at == step and component in wanted.get("components", ())

    def write_state(self, step: int) -> None:
        """Write the components of the state of `step` that are wanted."""
        wanted = SESSION.orders["tensors"]
        if wanted == "all" or (wanted == "first" and step == 0):
            SESSION.mark("tensors", step=step, digests=components.tensor_digests())
        if not SESSION.orders["dump"]:
            return
        named = components.weights()
        names = {id(p): name for name, p in named}
        if self.wants(step, "weights") and not self._is_too_much(step, named):
            self._write(step, "weights", named)
        if self.wants(step, "buffers"):
            self._write(step, "buffers", STRUCTURE.buffers())
        if self.wants(step, "averages"):
            self._write(step, "averages", components.averages())
        if self.wants(step, "optimizer"):
            tensors = [
                (f"{name}.{key}", value)
                for name, state in components.optimizer_entries(names)
                for key, value in state.items()
                if is_tensor(value)
            ]
            self._write(step, "optimizer", tensors)

    def _is_too_much(self, step: int, named: list[tuple[str, Any]]) -> bool:
        """Tell whether weights that only make a curve are too many to write."""
        wanted = SESSION.orders["dump"]
        at = wanted.get("state_of", wanted.get("step"))
        if at == step and "weights" in wanted.get("components", ()):
            return False
        size = sum(p.numel() * p.element_size() for _, p in named)
        return bool(size > wanted.get("most_bytes", 0))

    def write(self, step: int, component: str, tensors: list[tuple[str, Any]]) -> None:
        """Write a component of what `step` consumes and makes, if it is wanted.

        Called more than once for a step (micro-batches), it numbers the parts.
        """
        if not self.wants(step, component):
            return
        part = self._parts[component] = self._parts.get(component, 0) + 1
        if part > 1:
            tensors = [(f"{part}:{name}", tensor) for name, tensor in tensors]
        try:
            self._write(step, component, tensors, part=part)
        except Exception as error:
            SESSION.trouble(f"dump of {component}", error)

    def _write(
        self, step: int, component: str, tensors: list[tuple[str, Any]], part: int = 1
    ) -> None:
        assert SESSION.record is not None
        base = SESSION.record.path(f".dump-{step}-{component}")
        folder = SESSION.orders["dump"].get("folder")
        if folder:
            base = os.path.join(folder, os.path.basename(base))
        entries: list[dict[str, Any]] = []
        if part > 1 and os.path.exists(base + ".json"):
            with open(base + ".json", encoding="utf-8") as file:
                entries = json.load(file)["tensors"]
        with open(base + ".bin", "ab" if part > 1 else "wb") as data:
            for name, tensor in tensors:
                for content in plain_parts(tensor):
                    on_cpu = content.cpu()
                    kind = str(on_cpu.dtype).replace("torch.", "")
                    entry = {
                        "name": name,
                        "dtype": _NUMPY.get(kind, f"|u{on_cpu.element_size()}"),
                        "torch_dtype": kind,
                        "shape": list(on_cpu.shape),
                        "offset": data.tell(),
                        "bytes": on_cpu.numel() * on_cpu.element_size(),
                    }
                    data.write(buffer_of(on_cpu))
                    entries.append(entry)
        index = {
            "step": step,
            "component": component,
            "data": os.path.basename(base) + ".bin",
            "tensors": entries,
        }
        with open(base + ".json", "w", encoding="utf-8") as file:
            json.dump(index, file)
        if part == 1:
            SESSION.mark("dump", step=step, component=component, file=base + ".json")


DUMPS = Dumps()
