"""What a run leaves behind: one file of marks for each process, and a page of counters.

This module is shared by the probe, which writes inside the program on any Python from
3.9, and by the harness, which reads. It uses the standard library only.

A trace folder belongs to one attempt. Each process that loads the probe appends to a
file `PID-TOKEN.trace` of its own, one JSON object a line, written by a single `write` so
that a SIGKILL tears at most the last line. `t` is CLOCK_MONOTONIC in seconds, which all
processes of a machine share.

Marks, by their key `k`:

    hello     first mark of a process: schema, pid (as the process sees it), ppid, rank,
              local_rank, world_size, argv, executable, python, role ("main" for what
              may train, "helper" for loader workers, compile workers and the like);
              again if it learns its rank later or begins to train: the last one counts
    torch     torch was imported: version, algorithm (of fingerprints), threads
    state     the state of `step` (0: initial) as rules.md 1 defines it: `at` is "step",
              "save" or "finish"; `c` maps component -> fingerprint; `rng` maps an RNG
              stream -> [block, next_block or null, position], see `RNG_STREAMS`;
              `epoch`; `names` (only in a process's first) component -> count of tensors;
              `dtypes`: component -> its dtypes, sorted, with commas between;
              `less`: [[idle, c], ...]: c without the optimizers `idle` (indices), which
              may have stepped their last
    step      an optimizer step was completed: step (counted in this attempt from 1),
              c: fingerprints of what it consumed and made ("batch", "samples",
              "loss", "gradients"), loss (a float), samples (list of ids, as trained
              on), ids ("index" or "rows"), rows (with "index": digests of their
              content), micro (micro-batches in the window), epoch, by: optimizer's
              index -> [first, last] of the turns, of all, at which it stepped
    save      a save began: n (counted from 1 in this attempt, on this rank), writer,
              step, beside (only true: another thread than the one that trains writes
              it); the state at "save" that follows carries the same n
    held      of a save: n, weights (fingerprints, one of which the weights in it have,
              if they are of a state that was sampled; `LIVE`: those in training)
    saved     it ended: n, paths (final names, below the watched folder, relative),
              seconds; again with `late` for what a background writer added
    load      something was loaded: path (relative where below the folder), via, n
    read      a file below the folder was opened for reading, first time only: path
    site      a rare site was reached: site, n, step
    optimizer an optimizer exists: index, numel, name  (again with steps at the end)
    note      the probe has something to say: name, message
    dump      tensors were dumped for a divergence: step, component, file
    bye       the process ends: counts {site: n}, steps, exception {type, message, file,
              line} or null, counted {"optimizer": n, "backward": n, "batch": n}
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import struct
from collections.abc import Iterator
from typing import Any

SCHEMA = 1

# Ends the name of an empty file that says why a trace could not be written: `.ERRNO.lost`.
LOST_SUFFIX = ".lost"

# The one environment variable through which an attempt finds its orders: the path of a
# JSON file with the keys of `ORDERS`.
ORDERS_VARIABLE = "SPOTCHAOS_ORDERS"

# Orders of one attempt, with the value that the probe assumes for a missing key.
ORDERS: dict[str, Any] = {
    "socket": None,  # Unix stream socket of the harness; None: nobody listens
    "trace": None,  # folder for traces and counters; None: the probe stays out
    "attempt": 1,
    "folder": None,  # the program's working folder, as the program sees it
    "out": None,  # what `{out}` in the command stands for; watched like the folder
    "kill": None,  # "SITE:N" or "SITE:N@R": where to halt; None: nowhere
    "fingerprint": "all",  # "all", "saves" or "light", see rules.md 4
    "every": 10,  # with "saves": the state of each such step as well
    "step_by": "optimizer",  # what counts a step: optimizer, backward or batch
    "main_optimizer": None,  # index (in order of creation) of the one that counts
    "seed_program": None,  # seed torch, numpy and random from outside
    "deterministic": False,
    "threads": 1,
    "algorithm": None,  # "xxh3_128" or "torch_int64"; None: the best there is
    # {"step": K, "components": [...]}: write these tensors there, those of the state at
    # step "state_of" if it is given, and the weights of the steps "weights_at" if they
    # have no more than "most_bytes".
    "dump": None,
    "tensors": None,  # "first" or "all": a digest of each tensor, of step 0 or every one
    "store": False,  # there is an object store: what is saved to memory may go there
    "redirect": {},  # "host:port" -> "127.0.0.1:port", see probe/redirect.py
    "modules": False,  # `bye` names every imported module, for a zygote to preload
    "frames": None,  # path of a table: note there which line of the program is at work
    "mark_every_site": False,  # also those that every step reaches
    "record": None,  # path of an op log: write what Python can see of file ops there
    "then": [],  # "SITE:N" or "SITE:N@R", counted from when the page says "struck"
    "inference": False,  # nothing is trained: every forward is a site
    "slow": None,  # [rank, seconds]: that rank waits so long at each step and each save
    "faults": [],  # what Python is to refuse, see probe/refusals.py
    "allow_network": True,  # False: the probe refuses what is not loopback
}

# Sites that the probe reaches, in the order of their slots in the page of counters.
PROBE_SITES: tuple[str, ...] = (
    "start",
    "fetch",
    "forward",
    "backward",
    "optimizer-step",
    "step-end",
    "epoch-end",
    "evaluation",
    "save-begin",
    "save-end",
    "load-begin",
    "load-end",
    "finish",
)
# In `held`, in place of a fingerprint: what is written is what is being trained.
LIVE = "live"

# Sites that the supervisor of file operations reaches.
FILE_SITES: tuple[str, ...] = (
    "file-op",
    "write",
    "rename",
    "unlink",
    "fsync",
    "record",
)
# Sites that the object store reaches.
STORE_SITES: tuple[str, ...] = ("upload-part",)
SITES: tuple[str, ...] = PROBE_SITES[:-1] + FILE_SITES + STORE_SITES + ("finish",)

# Components of the state of a step, in the order in which a reader wants them.
STATE_COMPONENTS: tuple[str, ...] = (
    "weights",
    "buffers",
    "optimizer",
    "rates",
    "scheduler",
    "scaler",
    "averages",
)
# Those that Python, NumPy and torch share are Mersenne twisters; the fingerprint of one is
# "block.position": digest of the 624 words, and how many of them are used up. A stream
# that was moved by a few draws therefore keeps its block or has the one that follows.
RNG_STREAMS: tuple[str, ...] = (
    "rng.python",
    "rng.numpy",
    "rng.torch",
    "rng.cuda",
    "rng.generators",
    "rng.own",
)
# Components of what a step consumed and made.
STEP_COMPONENTS: tuple[str, ...] = ("batch", "samples", "frozen", "loss", "gradients")
COMPONENTS: tuple[str, ...] = STATE_COMPONENTS + RNG_STREAMS + STEP_COMPONENTS

_SLOT = struct.Struct("<Q")
# Slot 0 holds the completed steps, the next ones the sites of PROBE_SITES, in order;
# the last three the flag "struck", which the harness sets, the monotonic nanoseconds of
# the newest mark and the flag "halted".
COUNTER_SLOTS = 1 + len(PROBE_SITES) + 3
COUNTERS_BYTES = COUNTER_SLOTS * _SLOT.size


def encode(mark: dict[str, Any]) -> bytes:
    """Return one line for a mark; whatever JSON does not know becomes its `str`."""
    return json.dumps(mark, separators=(",", ":"), default=str).encode() + b"\n"


def decode_lines(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the marks of a trace file; a last line torn by SIGKILL is left out."""
    lines = content.split(b"\n")
    for line in lines[:-1]:
        if line:
            try:
                yield json.loads(line)
            except ValueError:
                continue


def reserve(descriptor: int, size: int) -> None:
    """Give a new file its size, and room on the disk: a map of a hole may end in SIGBUS.

    Raises:
        OSError: the disk is full.
    """
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        os.ftruncate(descriptor, size)  # a file system that reserves nothing


class Counters:
    """A page of counters in a file, which outlives a SIGKILL and is read while it runs.

    Args:
        path: the file `PID-TOKEN.counters` in the trace folder.
        writable: create it (the probe) instead of opening it to read (the harness).
    """

    def __init__(self, path: str, *, writable: bool = False) -> None:
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        descriptor = os.open(path, flags, 0o644)
        try:
            if writable:
                reserve(descriptor, COUNTERS_BYTES)
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._page = mmap.mmap(descriptor, COUNTERS_BYTES, access=access)
        finally:
            os.close(descriptor)

    def set(self, slot: int, value: int) -> None:
        """Store a non-negative count; a reader sees the old value or the new."""
        _SLOT.pack_into(self._page, slot * _SLOT.size, value)

    def get(self, slot: int) -> int:
        return int(_SLOT.unpack_from(self._page, slot * _SLOT.size)[0])

    def all(self) -> list[int]:
        return [self.get(slot) for slot in range(COUNTER_SLOTS)]

    @staticmethod
    def inject(path: str) -> None:
        """Tell the process of a page that its first signal is on its way (the harness)."""
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.pwrite(descriptor, _SLOT.pack(1), INJECTED_SLOT * _SLOT.size)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        self._page.close()


STEPS_SLOT = 0
HALTED_SLOT = COUNTER_SLOTS - 1
MOMENT_SLOT = COUNTER_SLOTS - 2
INJECTED_SLOT = COUNTER_SLOTS - 3


def site_slot(site: str) -> int:
    """Return the slot that counts how often `site` was reached."""
    return 1 + PROBE_SITES.index(site)
