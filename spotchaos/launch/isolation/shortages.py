"""What a machine runs short of while runs go on: never a finding about the program."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from spotchaos.errors import HarnessError
from spotchaos.trace.format import LOST_SUFFIX

# Below this much room an attempt would fail for want of it, and look like a finding.
LEAST_FREE_BYTES = 64 << 20
# Less is no room at all: the next write that matters fails.
FULL_BYTES = LEAST_FREE_BYTES // 8

_DISK = "free some space, or set TMPDIR to another disk"
HINTS: Mapping[int, str] = {
    errno.ENOSPC: _DISK,
    errno.EDQUOT: _DISK,
    errno.EMFILE: "allow more open files (ulimit -n 1024), or give fewer --jobs",
    errno.ENFILE: "the whole machine has too many files open: end what has",
    errno.ENOMEM: "free some memory, or give fewer --jobs",
    errno.EAGAIN: "allow more processes (ulimit -u), or give fewer --jobs",
}
_NO_SPACE = re.compile(
    r"No space left on device|Disk quota exceeded|\[Errno (28|122)\]"
)


def as_shortage(error: OSError) -> HarnessError:
    """Return what to say of an error that is a shortage of the machine's.

    Raises:
        OSError: it is none.
    """
    hint = HINTS.get(error.errno or 0)
    if hint is None:
        raise error
    place = f" at {str(error.filename)!r}" if error.filename else ""
    return HarnessError(f"this machine ran short{place}: {error.strerror}", hint=hint)


def shortage(
    scratch: Path, traces: Path, output: str, *, is_injected: bool
) -> str | None:
    """Return what an attempt ran short of because it is one of ours; None: nothing.

    Args:
        scratch: where private copies of what it writes go.
        traces: its trace folder.
        output: the end of what it printed.
        is_injected: a fault lets it meet a full disk.
    """
    is_full = shutil.disk_usage(scratch).free < FULL_BYTES
    was_full = not is_injected and _NO_SPACE.search(output) is not None
    lost = {path.suffixes[-2][1:] for path in traces.glob(f"*{LOST_SUFFIX}")}
    numbers = sorted(int(number) for number in lost if number.isdigit())
    if is_full or was_full or {errno.ENOSPC, errno.EDQUOT} & set(numbers):
        return (
            f"the disk of {str(scratch)!r}, where private copies of what the program"
            f" writes go, {'is' if is_full else 'was'} full: {_DISK}"
        )
    for number in numbers:
        return (
            f"what the probe saw could not be written ({os.strerror(number)}):"
            " does a limit (ulimit -n, ulimit -f) leave it no room?"
        )
    return None
