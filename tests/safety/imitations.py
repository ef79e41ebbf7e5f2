"""Places where people work and that cannot be had here, imitated by what they refuse.

    python imitations.py NAME COMMAND ...

runs a command, as a user and under refusals like those of the place. Root is needed, and
x86-64. Each refuses at least what its source names; nothing of it is changed outside the
command's own mount namespace.

Sources:
  docker       github.com/moby/profiles, seccomp/default.json: what is allowed only with a
               capability that a container does not have, or not at all; its capabilities
               are those of github.com/moby/moby, oci/caps/defaults.go
  kubernetes   kubernetes.io, "Pod Security Standards", restricted: no root, no capability,
               no_new_privs, RuntimeDefault (containerd's profile refuses what docker's does)
  github       discourse.ubuntu.com/t/37626 and apparmor.d/unprivileged_userns: a user
               namespace may be made, and every capability in it is denied
  gvisor       gvisor.dev/docs/user_guide/compatibility/linux/amd64: calls without support;
               seccomp has no listener, and no overlay can be mounted
  podman       github.com/containers/common, pkg/seccomp/seccomp.json: namespaces and mounts
               may be made, within a user namespace of its own; parts of /proc are hidden
  wsl          learn.microsoft.com, "Advanced settings configuration in WSL": a kernel with
               all of it, no control group that a user may write, Windows disks mounted
"""

import ctypes
import errno
import os
import struct
import subprocess
import sys

NUMBERS = {
    "acct": 163, "add_key": 248, "bpf": 321, "clock_settime": 227, "clone": 56,
    "clone3": 435, "copy_file_range": 326, "delete_module": 176, "fanotify_init": 300,
    "finit_module": 313, "fsconfig": 431, "fsmount": 432, "fsopen": 430, "fspick": 433,
    "init_module": 175, "io_uring_enter": 426, "io_uring_register": 427,
    "io_uring_setup": 425, "kcmp": 312, "kexec_load": 246, "keyctl": 250, "mbind": 237,
    "mount": 165, "mount_setattr": 442, "move_mount": 429, "move_pages": 279,
    "name_to_handle_at": 303, "open_by_handle_at": 304, "open_tree": 428,
    "openat2": 437, "perf_event_open": 298, "pidfd_getfd": 438, "pidfd_open": 434,
    "pivot_root": 155, "process_madvise": 440, "quotactl": 179, "reboot": 169,
    "request_key": 249, "seccomp": 317, "set_mempolicy": 238, "setdomainname": 171,
    "sethostname": 170, "setns": 308, "settimeofday": 164, "swapoff": 168, "swapon": 167,
    "syslog": 103, "umount2": 166, "unshare": 272, "userfaultfd": 323, "vhangup": 153,
}  # fmt: skip
NEW_NAMESPACES = 0x7E020000
NEW_USER = 0x10000000
DOCKER = dict.fromkeys(
    [
        "acct",
        "add_key",
        "bpf",
        "clock_settime",
        "delete_module",
        "fanotify_init",
        "finit_module",
        "fsconfig",
        "fsmount",
        "fsopen",
        "fspick",
        "init_module",
        "io_uring_enter",
        "io_uring_register",
        "io_uring_setup",
        "kcmp",
        "kexec_load",
        "keyctl",
        "mbind",
        "mount",
        "mount_setattr",
        "move_mount",
        "move_pages",
        "open_by_handle_at",
        "open_tree",
        "perf_event_open",
        "pidfd_getfd",
        "pivot_root",
        "process_madvise",
        "quotactl",
        "reboot",
        "request_key",
        "set_mempolicy",
        "setdomainname",
        "sethostname",
        "setns",
        "settimeofday",
        "swapoff",
        "swapon",
        "syslog",
        "umount2",
        "unshare",
        "userfaultfd",
        "vhangup",
    ],
    errno.EPERM,
) | {"clone3": errno.ENOSYS}
# CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE,
# NET_RAW, SYS_CHROOT, MKNOD, AUDIT_WRITE, SETFCAP
DOCKER_CAPABILITIES = 0x00000000A80425FB
IN_USER_NAMESPACE = {  # what needs a capability there, which AppArmor denies
    "mount": errno.EACCES,
    "umount2": errno.EACCES,
    "pivot_root": errno.EACCES,
    "mount_setattr": errno.EPERM,
    "sethostname": errno.EPERM,
    "setns": errno.EPERM,
    "open_tree": errno.EPERM,
}
GVISOR = dict.fromkeys(
    [
        "copy_file_range",
        "fanotify_init",
        "fsconfig",
        "fsmount",
        "fsopen",
        "fspick",
        "io_uring_enter",
        "io_uring_register",
        "io_uring_setup",
        "kcmp",
        "keyctl",
        "mount_setattr",
        "move_mount",
        "open_tree",
        "openat2",
        "perf_event_open",
        "pidfd_getfd",
        "pidfd_open",
        "process_madvise",
        "userfaultfd",
    ],
    errno.ENOSYS,
) | {"mount": errno.EPERM, "pivot_root": errno.EPERM}

PLACES = {
    "docker-root": {"user": 0, "capabilities": DOCKER_CAPABILITIES, "refused": DOCKER},
    "docker-user": {"user": 65534, "refused": DOCKER},
    "kubernetes": {"user": 65534, "refused": DOCKER, "no_new_privs": True},
    "github": {
        "user": 65534,
        "refused": IN_USER_NAMESPACE,
        "unshare": "user only",
        "shm": None,
    },
    "gvisor": {"user": 65534, "refused": GVISOR, "listener": False},
    "podman": {"user": 65534, "refused": {}, "rootless": True},
    "wsl": {"user": 65534, "refused": {}, "shm": None},
}
# Hidden or read-only in a container, so that no new /proc may be mounted.
MASKED = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware")

_LOAD, _JUMP_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_libc = ctypes.CDLL(None, use_errno=True)


def filter_of(place):
    """Return the seccomp program of a place: numbers, and for two calls an argument."""
    code = [(_LOAD, 0, 0, 0)]

    def refuse(number, error, *, argument=None, unless=None):
        deny = (_RETURN, 0, 0, _ERRNO | error)
        if argument is None:
            code.extend([(_JUMP_EQUAL, 0, 1, number), deny])
            return
        at, mask = argument
        code.extend(
            [
                (_JUMP_EQUAL, 0, 4, number),
                (_LOAD, 0, 0, 16 + 8 * at),
                (_JUMP_SET, 0, 1, mask),
                deny,
                (_LOAD, 0, 0, 0),
            ]
        )

    for name, error in place["refused"].items():
        refuse(NUMBERS[name], error)
    if place["refused"] is DOCKER:
        refuse(NUMBERS["clone"], errno.EPERM, argument=(0, NEW_NAMESPACES))
    if place.get("unshare") == "user only":
        others = NEW_NAMESPACES & ~NEW_USER
        refuse(NUMBERS["unshare"], errno.EPERM, argument=(0, others))
        refuse(NUMBERS["clone"], errno.EPERM, argument=(0, others))
    if place.get("listener") is False:
        refuse(NUMBERS["seccomp"], errno.EINVAL, argument=(1, 8))
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *one) for one in code)


def enter(place):
    """Be the user of the place, with its rights and under its filter."""
    capabilities = place.get("capabilities", 0)
    for number in range(64):
        if not capabilities >> number & 1 and not place.get("rootless"):
            _libc.prctl(24, ctypes.c_ulong(number), 0, 0, 0)  # PR_CAPBSET_DROP
    if place["user"]:
        os.setgroups([])
        os.setresgid(*[place["user"]] * 3)
        os.setresuid(*[place["user"]] * 3)
    else:
        low, high = capabilities & 0xFFFFFFFF, capabilities >> 32
        header, data = struct.pack("=Ii", 0x20080522, 0), (low, low, 0, high, high, 0)
        assert _libc.capset(header, struct.pack("=6I", *data)) == 0
    if place.get("rootless"):
        uid, gid = os.getuid(), os.getgid()
        assert _libc.unshare(NEW_USER | 0x00020000) == 0, "no user namespace"
        _libc.prctl(4, 1, 0, 0, 0)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {uid} 1"),
            ("gid_map", f"0 {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        for path in MASKED:
            if os.path.isdir(path):
                subprocess.run(["mount", "-t", "tmpfs", "none", path], check=True)
            elif os.path.exists(path):
                subprocess.run(["mount", "--bind", "/dev/null", path], check=True)
        for number in range(64):
            if not DOCKER_CAPABILITIES >> number & 1:
                _libc.prctl(24, ctypes.c_ulong(number), 0, 0, 0)
    if place["refused"]:
        # A container's filter is installed by root, without no_new_privs; ours by now is
        # not, but for what a setuid program could do this is the same.
        _libc.prctl(38, 1, 0, 0, 0)
        raw = filter_of(place)
        buffer = ctypes.create_string_buffer(raw, len(raw))
        program = struct.pack("@HxxxxxxP", len(raw) // 8, ctypes.addressof(buffer))
        assert _libc.prctl(22, 2, program, 0, 0) == 0, "no filter"


def main(name, command):
    place = PLACES[name]
    assert _libc.unshare(0x00020000) == 0, "root is needed"
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    if place.get("shm", "64m"):  # what a container has, unless it is told more
        options = f"mode=1777,size={place.get('shm', '64m')}"
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", "/dev/shm"], check=True
        )
    enter(place)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
