"""How a forked process looks in /proc: by the command and the variables of a fresh one.

Standard library only, Python 3.9 and newer: `zygote_child.py`, which runs under the
program's interpreter, loads this file by its path.

Source: prctl(2), PR_SET_MM_MAP and PR_SET_NAME; proc(5), fields of /proc/PID/stat.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

PR_SET_NAME = 15
PR_SET_MM = 35
PR_SET_MM_MAP = 14
# start_code to env_end, auxv, auxv_size, exe_fd: as in <linux/prctl.h>
MAP = struct.Struct("=11QQII")
UNCHANGED = 0xFFFFFFFF

_kept: list[Any] = []  # the memory that the kernel reads from now on


def put_on(words: Sequence[str], variables: Mapping[str, str], name: str) -> None:
    """Have /proc show these words and variables, where the kernel lets us.

    Args:
        words: the command line.
        variables: the environment that the process began with.
        name: of the file that was executed; the kernel keeps 15 bytes.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    short = ctypes.create_string_buffer(os.fsencode(name)[:15])
    libc.prctl(PR_SET_NAME, ctypes.addressof(short), 0, 0, 0)
    arguments = b"".join(os.fsencode(word) + b"\0" for word in words)
    environment = b"".join(
        os.fsencode(f"{key}={value}") + b"\0" for key, value in variables.items()
    )
    size = len(arguments) + len(environment)
    memory = ctypes.create_string_buffer(arguments + environment, size)
    at = ctypes.addressof(memory)
    middle, end = at + len(arguments), at + size
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(") ")[2].split()
    code, data = fields[23:25], fields[42:44]
    heap, stack = int(fields[44]), int(fields[25])
    libc.sbrk.restype = ctypes.c_void_p
    layout = MAP.pack(
        *map(int, (*code, *data)),
        *(heap, libc.sbrk(0), stack, at, middle, middle, end),
        *(0, 0, UNCHANGED),
    )
    described = ctypes.create_string_buffer(layout, len(layout))
    _kept.append(memory)
    libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.addressof(described), len(layout), 0)
