"""The system calls that isolate an attempt: namespaces, mounts, the loopback device.

Standard library only, Python 3.9 and newer: `inside.py`, which runs on the program's side,
loads this file by its path.
"""

# Paths here are handed to system calls as they are.
# ruff: noqa: PTH102, PTH103, PTH106, PTH118, PTH123

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

CLONE = {
    "mount": 0x00020000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "network": 0x40000000,
}
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
# The same numbers on every architecture that has them (they are from 2019 and later).
SYS_MOUNT_SETATTR = 442
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 1
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK = 0x8913, 0x8914, 0x8916, 0x891C
IFF_UP = 1

# Options of an overlay, best first; the next are tried where the kernel is too old.
# `volatile` spares the disk: a view never outlives the machine. As root, renaming a
# folder of the lower layer works with redirect_dir; in a user namespace it is refused.
OVERLAY_OPTIONS = {
    "root": [
        "redirect_dir=on,index=off,metacopy=off,volatile",
        "redirect_dir=on,index=off,metacopy=off",
        "index=off",
    ],
    "user": ["userxattr,volatile", "userxattr"],
}

_libc = ctypes.CDLL(None, use_errno=True)


def unshare_first(names: Sequence[str]) -> None:
    """Leave the user and PID namespaces: the children of this process are in the new."""
    uid, gid = os.geteuid(), os.getegid()
    if "user" in names:
        _check(_libc.unshare(CLONE["user"]), "unshare a user namespace")
        # Changing credentials makes /proc/PID unreadable to the harness; undo that.
        prctl(PR_SET_DUMPABLE, 1)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    if "pid" in names:
        _check(_libc.unshare(CLONE["pid"]), "unshare a PID namespace")


def bring_up_loopback(addresses: Sequence[str]) -> None:
    """Switch the loopback device on and give it further addresses, as /32 or /128."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(s, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))
        for number, address in enumerate(a for a in addresses if ":" not in a):
            name = b"lo:%d" % (number + 1)
            for order, value in (
                (SIOCSIFADDR, address),
                (SIOCSIFNETMASK, "255.255.255.255"),
            ):
                packed = struct.pack(
                    "HH4s8x", socket.AF_INET, 0, socket.inet_aton(value)
                )
                fcntl.ioctl(s, order, struct.pack("16s16s8x", name, packed))
    for address in (a for a in addresses if ":" in a):
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s:
            packed = socket.inet_pton(socket.AF_INET6, address.split("%")[0])
            request = struct.pack("16sIi", packed, 128, socket.if_nametoindex("lo"))
            try:
                fcntl.ioctl(s, SIOCSIFADDR, request)
            except OSError:  # IPv6 is off; then nothing can bind to it either
                continue


def unshare_rest(names: Sequence[str]) -> None:
    """Leave the namespaces that a process changes for itself."""
    flags = 0
    for name in names:
        flags |= CLONE[name] if name not in ("user", "pid") else 0
    if flags:
        _check(_libc.unshare(flags), "unshare")
    if "mount" in names:
        _mount("none", "/", None, MS_REC | MS_PRIVATE)


def mount_all(spec: dict[str, Any]) -> list[str]:
    """Carry out all mounts and change to the new root.

    Returns:
        Mount points that could only be made read-only.
    """
    refused: list[str] = []
    root = spec["root"] or ""
    for step in spec["mounts"]:
        target = root + step["at"] if step["at"] != "/" or not root else root
        try:
            _mount_step(step, target, root)
        except OSError:
            otherwise = step.get("otherwise")
            if otherwise is None:
                raise
            if otherwise == "bind":
                _bind(step["at"], target, recursive=True)
            elif otherwise == "readonly" and _bind_readonly(step["at"], target):
                refused.append(step["at"])
    if root:
        _pivot(root)
    return refused


def _mount_step(step: dict[str, Any], target: str, root: str) -> None:
    """Carry out one step, {"do", "at", ...}.

    `otherwise` says what to do if it fails: "nothing", "bind" what lies there, or
    "readonly", which binds it so. An `inner` source is a path of the view.
    """
    do = step["do"]
    if do == "overlay":
        _mount_overlay(step, target)
    elif do == "bind":
        source = root + step["source"] if step.get("inner") else step["source"]
        recursive = step.get("recursive", False)
        _bind(source, target, recursive=recursive)
        try:
            if step.get("readonly"):
                _make_readonly(target, recursive=recursive)
        except OSError:
            _check(_libc.umount2(os.fsencode(target), MNT_DETACH), "let go")
            raise
    elif do == "readonly":
        _make_readonly(target, recursive=False)
    elif do == "root":
        _bind(target, target, recursive=False)
    elif do == "make":
        os.makedirs(target, exist_ok=True)
    else:  # a file system without a device: proc, tmpfs, devpts, mqueue
        _mount(do, target, do, step.get("flags", 0), step.get("options"))


def _mount_overlay(step: dict[str, Any], target: str) -> None:
    """Mount an overlay with the first set of options that the kernel takes."""
    os.makedirs(step["work"], exist_ok=True)
    paths = "".join(
        f",{name}={_escaped(step[key])}"
        for name, key in (
            ("lowerdir", "lower"),
            ("upperdir", "upper"),
            ("workdir", "work"),
        )
    )
    for options in step["options"][:-1]:
        try:
            _mount("overlay", target, "overlay", 0, options + paths)
            return
        except OSError:
            # A failed try may leave `work/incompat`, which refuses the next one.
            shutil.rmtree(step["work"], ignore_errors=True)
            os.makedirs(step["work"], exist_ok=True)
    _mount("overlay", target, "overlay", 0, step["options"][-1] + paths)


def _escaped(path: str) -> str:
    for character in ("\\", ",", ":"):
        path = path.replace(character, "\\" + character)
    return path


def _bind(source: str, target: str, *, recursive: bool) -> None:
    _mount(source, target, None, MS_BIND | (MS_REC if recursive else 0))


def _make_readonly(target: str, *, recursive: bool) -> None:
    attributes = struct.pack("QQQQ", MOUNT_ATTR_RDONLY, 0, 0, 0)
    done = _libc.syscall(
        ctypes.c_long(SYS_MOUNT_SETATTR),
        ctypes.c_int(AT_FDCWD),
        os.fsencode(target),
        ctypes.c_uint(AT_RECURSIVE if recursive else 0),
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    if done == 0:
        return
    # Kernels before 5.12: the mount itself, keeping the flags that it has.
    keep = os.statvfs(target).f_flag & (2 | 4 | 8 | 1024 | 2048)
    _mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | keep)


def _bind_readonly(source: str, target: str) -> bool:
    """Show a folder as it is, but never writable; one that is gone is not shown."""
    try:
        _bind(source, target, recursive=True)
    except OSError:
        return False
    try:
        _make_readonly(target, recursive=True)
    except OSError:
        _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"let go of {target}")
        return False
    return True


def _pivot(root: str) -> None:
    """Make `root` the root and let go of the old one (pivot_root(2), NOTES)."""
    os.chdir(root)
    if _libc.pivot_root(b".", b".") == 0:
        _check(_libc.umount2(b".", MNT_DETACH), "let go of the old root")
    else:  # an initial ramfs cannot be pivoted away from
        os.chroot(".")
    os.chdir("/")


def _mount(
    source: str,
    target: str,
    kind: str | None,
    flags: int,
    options: str | None = None,
) -> None:
    _check(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            None if kind is None else kind.encode(),
            ctypes.c_ulong(flags),
            None if options is None else os.fsencode(options),
        ),
        f"mount {kind or 'bind'} at {target}",
    )


def prctl(option: int, value: int) -> None:
    """Set one of the process's own properties (prctl(2)); a refusal changes nothing."""
    _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def try_all(folder: str) -> dict[str, str | None]:
    """Try every mechanism in a process of its own.

    Args:
        folder: an empty one of ours, on the file system that is to hold views.

    Returns:
        For each mechanism None if it works, else the reason why not. The keys are "user"
        and, as far as they can be had with or without it, the others of `CLONE`,
        "whole root", "each folder" (ways to overlay) and "needs user".
    """
    tried: dict[str, str | None] = {"user": _try(["user"], lambda: None)}
    plain = _try(["mount"], lambda: None)
    first = [] if plain is None else ["user"]
    tried["needs user"] = plain
    for name in ("mount", "ipc", "uts"):
        tried[name] = _try([*first, name], lambda: None)
    tried["network"] = _try([*first, "network"], lambda: bring_up_loopback(()))
    mounting = [*first, "mount", "pid"]
    tried["pid"] = _try([*first, "pid"], lambda: None)
    place = {
        name: os.path.join(folder, name) for name in ("lower", "upper", "work", "at")
    }
    for path in place.values():
        os.makedirs(path, exist_ok=True)
    tried["proc"] = _try(mounting, lambda: _mount("proc", place["at"], "proc", 0))

    def overlay(lower: str) -> None:
        options = OVERLAY_OPTIONS["user" if first else "root"]
        step = {**place, "lower": lower, "options": options}
        shutil.rmtree(place["work"], ignore_errors=True)
        _mount_overlay(step, place["at"])
        # Whiteouts and folders that are replaced need more than a mount.
        inner = os.path.join(place["at"], "spotchaos-try")
        os.mkdir(inner)
        os.rmdir(inner)

    tried["whole root"] = _try([*first, "mount"], lambda: overlay("/"))
    tried["each folder"] = _try([*first, "mount"], lambda: overlay(place["lower"]))
    return tried


def _try(names: Sequence[str], action: Callable[[], Any]) -> str | None:
    """Do it in a child that has left the namespaces named; return its complaint."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        message = ""
        try:
            unshare_first(names)
            # The PID namespace is that of the next child.
            inner = os.fork()
            if inner == 0:
                try:
                    unshare_rest(names)
                    action()
                except OSError as error:
                    os.write(writer, str(error).encode() or b"?")
                os._exit(0)
            os.waitpid(inner, 0)
        except OSError as error:
            message = str(error)
        finally:
            os.write(writer, message.encode())
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        complaint = pipe.read().decode("utf-8", "replace")
    os.waitpid(child, 0)
    return complaint or None


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # blocked while we were started
    json.dump(try_all(sys.argv[1]), sys.stdout)
