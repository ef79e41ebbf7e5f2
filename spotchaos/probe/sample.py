"""The state of one step, fingerprinted at the moment that rules.md 1 names.

What no one changes before the next optimizer step (weights, optimizer state, averages)
may be hashed by a thread while forward and backward run; everything else at once. Whoever
is about to change something calls `settle` first.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from spotchaos.probe import components, streams
from spotchaos.probe.session import SESSION
from spotchaos.probe.structure import STRUCTURE

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Below this many bytes a thread costs more than it hides.
_WORTH_A_THREAD_BYTES = 4 << 20


class Sample:
    """Fingerprints of the components of one state, some perhaps still being made.

    Args:
        step: completed steps of this attempt.
        epoch: epochs that have ended.
    """

    def __init__(self, step: int, epoch: int) -> None:
        self.step = step
        self.epoch = epoch
        self.components: dict[str, str] = {}
        self.rng: dict[str, Any] = {}
        self.names: dict[str, int] = {}
        self.dtypes: dict[str, str] = {}
        self.written = False
        self._thread: threading.Thread | None = None

    def settle(self) -> None:
        """Wait until all fingerprints are there."""
        thread = self._thread
        if thread is not None:
            thread.join()
            self._thread = None

    def fill(self, *, in_background: bool) -> None:
        """Fingerprint everything.

        Args:
            in_background: weights, optimizer state and averages will not change until
                `settle` is called, so that a thread may hash them meanwhile.
        """
        named = components.weights()
        names = {id(parameter): name for name, parameter in named}
        entries = components.optimizer_entries(names)
        buffers = STRUCTURE.buffers()
        averages = components.averages()
        jobs: list[tuple[str, Callable[[], str]]] = [
            ("weights", lambda: components.sorted_digest(named)),
            ("optimizer", lambda: components.digest_optimizer(entries)),
        ]
        if averages:
            jobs.append(("averages", lambda: components.sorted_digest(averages)))
        self._describe(named, buffers, entries, averages)
        if in_background and _is_worth_a_thread(named):
            self._thread = threading.Thread(
                target=self._run,
                args=(jobs,),
                name="spotchaos-fingerprint",
                daemon=True,
            )
            self._thread.start()
        else:
            self._run(jobs)
        if buffers:
            self.components["buffers"] = components.sorted_digest(buffers)
        self._put("rates", components.rates())
        self._put("scheduler", components.schedulers())
        self._put("scaler", components.scalers())
        self.rng = streams.read_streams(components.generators())
        for name, stream in self.rng.items():
            self.components[name] = streams.fingerprint(stream)

    def _run(self, jobs: list[tuple[str, Callable[[], str]]]) -> None:
        for name, job in jobs:
            try:
                self.components[name] = job()
            except Exception as error:
                SESSION.trouble(f"fingerprint of {name}", error)

    def _put(self, name: str, values: list[Any]) -> None:
        if values:
            self.components[name] = components.digest_values(values)

    def _describe(
        self,
        named: list[tuple[str, Any]],
        buffers: list[tuple[str, Any]],
        entries: list[tuple[str, dict[str, Any]]],
        averages: list[tuple[str, Any]],
    ) -> None:
        moments = [
            (name, value)
            for name, state in entries
            for value in state.values()
            if hasattr(value, "dtype") and bool(getattr(value, "shape", ()))
        ]
        for name, tensors in (
            ("weights", named),
            ("buffers", buffers),
            ("optimizer", moments),
            ("averages", averages),
        ):
            if tensors:
                self.names[name] = len(tensors)
                kinds = sorted({str(t.dtype).replace("torch.", "") for _, t in tensors})
                self.dtypes[name] = ",".join(kinds)


def _is_worth_a_thread(named: list[tuple[str, Any]]) -> bool:
    size = 0
    for _, tensor in named:
        # A thread that hashes beside a device's own would order its kernels among them.
        if tensor.device.type != "cpu" or hasattr(tensor, "_local_tensor"):
            return False
        size += tensor.numel() * tensor.element_size()
    return size >= _WORTH_A_THREAD_BYTES
