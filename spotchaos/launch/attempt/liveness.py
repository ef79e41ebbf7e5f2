"""How far an attempt has come, and where it hangs, read while it runs."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from spotchaos.clock import Clock
from spotchaos.launch.isolation import process_tree
from spotchaos.launch.isolation.process_tree import Process
from spotchaos.trace.format import PROBE_SITES, STEPS_SLOT, Counters, site_slot

STACKS_BOUND_S = 3.0
STACKS_POLL_S = 0.05
STACKS_SIGNAL = signal.SIGRTMIN + 10


class Pages:
    """The pages of counters of an attempt, kept open.

    Args:
        folder: the attempt's trace folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pages: dict[str, Counters] = {}

    def by_rank(
        self, ranks: Mapping[int, int]
    ) -> dict[int, tuple[int, Mapping[str, int]]]:
        """Return, for each rank, its steps and how often it reached each site.

        Args:
            ranks: the rank of each process that trains, by its pid as it sees it.
        """
        found: dict[int, tuple[int, Mapping[str, int]]] = {}
        for path in self._folder.glob("*.counters"):
            rank = ranks.get(int(path.name.partition("-")[0]))
            page = self._page(path)
            if rank is None or page is None:
                continue
            steps = page.get(STEPS_SLOT)
            if rank not in found or steps >= found[rank][0]:
                sites = {site: page.get(site_slot(site)) for site in PROBE_SITES}
                found[rank] = (steps, sites)
        return found

    def inject(self) -> None:
        """Tell every process that counts from its first signal that it is coming."""
        for path in self._folder.glob("*.counters"):
            Counters.inject(str(path))

    def close(self) -> None:
        for page in self._pages.values():
            page.close()
        self._pages.clear()

    def _page(self, path: Path) -> Counters | None:
        if path.name not in self._pages:
            try:
                self._pages[path.name] = Counters(str(path))
            except (OSError, ValueError):  # not yet as long as a page
                return None
        return self._pages[path.name]


def collect_stacks(
    members: Sequence[Process],
    folder: Path,
    *,
    ranks: Mapping[int, int],
    clock: Clock,
) -> str:
    """Ask every process that listens for it where it is; return what they say.

    Args:
        members: the processes of the program.
        folder: where the probe's faulthandler writes `PID.stacks`.
        ranks: the rank of each process that trains, by its pid as it sees it.
        clock: of the wait for their answers.
    """
    asked: dict[int, Path] = {}
    for process in members:
        file = folder / f"{process.inner_pid}.stacks"
        # Where the program has closed it, its number may be that of a file of its own.
        if process_tree.catches(process.pid, STACKS_SIGNAL) and process_tree.has_open(
            process.pid, file
        ):
            asked[process.inner_pid] = file
            process_tree.send([process.pid], STACKS_SIGNAL)
    deadline_s = clock.monotonic() + STACKS_BOUND_S
    sizes: dict[int, int] = {}
    while asked and clock.monotonic() < deadline_s:
        clock.sleep(STACKS_POLL_S)
        now = {pid: _size(path) for pid, path in asked.items()}
        if now == sizes and all(now.values()):
            break
        sizes = now
    parts = []
    for pid, path in sorted(asked.items()):
        with contextlib.suppress(OSError):
            who = f"rank {ranks[pid]}, pid {pid}" if pid in ranks else f"pid {pid}"
            parts.append(f"{who}:\n{path.read_text(errors='replace').rstrip()}")
    return "\n\n".join(parts)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
