"""What of root's rights an attempt keeps: those that are of use in its own namespaces.

Whoever starts a program as root in a container has about these as well (the default list
of Docker and of the OCI). The rest would reach the machine itself: its clock, its disks, its
mounts, its kernel, and the processes that isolate the attempt.

Standard library only, Python 3.9 and newer: `inside.py`, which runs on the program's side,
loads this file by its path. Numbers: <linux/capability.h>, <linux/prctl.h>.
"""

# Paths here are handed to system calls as they are.
# ruff: noqa: PTH123

from __future__ import annotations

import ctypes
import os
import struct

KEPT = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_BIND_SERVICE": 10,
    "CAP_NET_RAW": 13,
    "CAP_IPC_LOCK": 14,
    "CAP_IPC_OWNER": 15,
    "CAP_SYS_CHROOT": 18,
    "CAP_SYS_NICE": 23,
    "CAP_SYS_RESOURCE": 24,
    "CAP_AUDIT_WRITE": 29,
    "CAP_SETFCAP": 31,
}
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 24, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
_VERSION_3 = 0x20080522
_HIGHEST = 63


def kept_of(held: int) -> int:
    """Return the set that an attempt keeps of what its user holds, as a bit mask."""
    mask = 0
    for number in KEPT.values():
        mask |= 1 << number
    return held & mask


def held_here() -> int:
    """Return the effective capabilities of this process, as a bit mask."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16)
    return 0


def names_of(mask: int) -> list[str]:
    """Return the names of a set that an attempt keeps."""
    return [name for name, number in KEPT.items() if mask >> number & 1]


def keep_only(mask: int) -> None:
    """Give every other capability up for good, in this process and all it will start.

    Raises:
        OSError: the kernel refuses; the process must not go on.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for number in range(_HIGHEST + 1):
        # Refused where it cannot be had anyway: by those who may not, or an old kernel.
        if not mask >> number & 1:
            libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0)
    libc.prctl(PR_CAP_AMBIENT, ctypes.c_ulong(PR_CAP_AMBIENT_CLEAR_ALL), 0, 0, 0)
    # The set is no more than we have, and nothing is inherited by an exec beyond it.
    own = mask & held_here()
    low, high = own & 0xFFFFFFFF, own >> 32
    header = struct.pack("=Ii", _VERSION_3, 0)
    data = struct.pack("=6I", low, low, 0, high, high, 0)
    if libc.capset(header, data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"give up capabilities: {os.strerror(number)}")
    if libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"gain no privileges any more: {os.strerror(number)}")
