"""The filter asks about what could change a folder, and about nothing else."""

import errno
import os
import re
import struct
from pathlib import Path

import pytest

from spotchaos.launch.supervisor.seccomp import (
    MACHINES,
    SeccompError,
    filter_program,
    numbers,
)

ALLOW, NOTIFY, ERRNO = 0x7FFF0000, 0x7FC00000, 0x00050000


def decide(program, machine, number, *args):
    """Run the filter as the kernel would; return its verdict."""
    code = list(struct.iter_unpack("=HBBI", program))
    words = struct.pack(
        "=iIQ6Q", number, MACHINES[machine][1], 0, *args, *[0] * (6 - len(args))
    )
    at, value = 0, 0
    while True:
        op, yes, no, k = code[at]
        at += 1
        match op:
            case 0x20:
                (value,) = struct.unpack_from("=I", words, k)
            case 0x06:
                return k
            case 0x15:
                at += yes if value == k else no
            case 0x25:
                at += yes if value > k else no
            case 0x35:
                at += yes if value >= k else no
            case 0x45:
                at += yes if value & k else no


HEADERS = Path("/usr/include")
# Where the kernel's own headers give each machine's numbers; the generic ones are those
# of aarch64, under names of their own where 32-bit machines have two of a call.
NUMBERS_OF = {
    "x86_64": HEADERS / "x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": HEADERS / "asm-generic/unistd.h",
}
ALIASES = {"newfstatat": "fstatat"}
# aarch64 has only the calls that take a folder's descriptor.
OLD = {
    "chmod",
    "open",
    "creat",
    "rename",
    "link",
    "symlink",
    "unlink",
    "rmdir",
    "mkdir",
    "mknod",
}
OLD |= {"stat", "lstat", "access", "readlink"}


def kernels_numbers(machine):
    text = NUMBERS_OF[machine].read_text()
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)
    return {name: int(number) for name, number in found}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_the_kernels_headers(machine):
    if not NUMBERS_OF[machine].exists():
        pytest.skip("no headers of the kernel (linux-libc-dev)")
    theirs = kernels_numbers(machine)
    known = {
        name: theirs.get(name, theirs.get(ALIASES.get(name, name)))
        for name in numbers(machine)
    }
    assert known == numbers(machine)


def test_both_machines_know_the_same_calls():
    assert numbers("x86_64").keys() - numbers("aarch64").keys() == OLD
    assert numbers("aarch64").keys() <= numbers("x86_64").keys()


CASES = [
    pytest.param("openat", (0, 0, os.O_RDONLY), ALLOW, id="reading-is-free"),
    pytest.param("openat", (0, 0, os.O_WRONLY), NOTIFY, id="opening-to-write"),
    pytest.param("openat", (0, 0, os.O_RDONLY | os.O_CREAT), NOTIFY, id="creating"),
    pytest.param("write", (1,), NOTIFY, id="the-programs-output"),
    pytest.param("write", (2,), ALLOW, id="its-errors"),
    pytest.param("writev", (3,), NOTIFY, id="a-file"),
    pytest.param("mmap", (0, 0, 3, 2, 5), ALLOW, id="a-private-mapping"),
    pytest.param("mmap", (0, 0, 3, 1, 5), NOTIFY, id="a-shared-mapping"),
    pytest.param("mmap", (0, 0, 3, 0x21, 0xFFFFFFFF), ALLOW, id="shared-without-file"),
    pytest.param("ioctl", (3, 0x40049409), ERRNO | errno.EOPNOTSUPP, id="a-reflink"),
    pytest.param("ioctl", (3, 0x5401), ALLOW, id="another-ioctl"),
    pytest.param("io_uring_setup", (), ERRNO | errno.ENOSYS, id="io-uring"),
    pytest.param("renameat2", (), NOTIFY, id="a-rename"),
    pytest.param("fsync", (), NOTIFY, id="an-fsync"),
    pytest.param("newfstatat", (), ALLOW, id="a-question"),
]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("name", "args", "verdict"), CASES)
def test_what_the_filter_says(machine, name, args, verdict):
    program = filter_program(machine=machine)
    assert decide(program, machine, numbers(machine)[name], *args) == verdict


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_that_the_table_does_not_know_is_free(machine):
    known = set(numbers(machine).values())
    program = filter_program(machine=machine)
    for number in set(range(460)) - known:
        assert decide(program, machine, number) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_observing_reads_asks_about_questions_too(machine):
    program = filter_program(observe_reads=True, machine=machine)
    table = numbers(machine)
    assert decide(program, machine, table["newfstatat"]) == NOTIFY
    assert decide(program, machine, table["openat"], 0, 0, os.O_RDONLY) == NOTIFY


def test_another_architecture_is_left_alone():
    program = filter_program(machine="x86_64")
    assert decide(program, "aarch64", 1, 5) == ALLOW


def test_another_machine_is_refused_by_name():
    with pytest.raises(SeccompError, match="no system call numbers for 's390x'"):
        filter_program(machine="s390x")
