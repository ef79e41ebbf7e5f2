"""What an attempt of root can do to the machine: nothing; and to its own: what it could."""

import ctypes
import os
import socket
from pathlib import Path

import pytest

from tests.launch.conftest import (  # noqa: F401 - fixtures
    folder,
    mechanisms,
    run,
    start,
    view,
    workspace,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has such rights")
modes = pytest.mark.parametrize("mechanisms", ["best", "user"], indirect=True)

ATTACKS = """
import ctypes, os, signal, socket, stat, struct, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
done = []

def try_it(name, action):
    try:
        result = action()
    except (OSError, PermissionError, ProcessLookupError):
        return
    if result is not False and result != -1:
        done.append(name)

def mount(source, target, kind, flags, options=None):
    return libc.mount(source, target, kind, ctypes.c_ulong(flags), options)

def opened(path, how=os.O_RDWR):
    os.close(os.open(path, how))

REMOUNT = 32
HANDLE = struct.pack("Ii", 8, 1) + struct.pack("II", 2, 0)  # of the root of an ext4
try_it("sys writable", lambda: mount(b"none", b"/sys", None, REMOUNT))
try_it("sys bind writable", lambda: mount(b"none", b"/sys", None, REMOUNT | 4096))
try_it("proc sys writable", lambda: mount(b"none", b"/proc/sys", None, REMOUNT | 4096))
try_it("mount of a new proc", lambda: mount(b"proc", b"/mnt", b"proc", 0))
try_it("umount", lambda: libc.umount2(b"/proc/sys", 2))
try_it("the clock", lambda: libc.clock_settime(0, struct.pack("qq", 1, 0)))
try_it("the time zone", lambda: libc.settimeofday(None, struct.pack("ii", 0, 0)))
try_it("a disk device", lambda: os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(7, 0)))
try_it("memory device", lambda: os.mknod("mem", 0o600 | stat.S_IFCHR, os.makedev(1, 1)))
for path in sorted(os.listdir("/dev")):
    whole = f"/dev/{path}"
    if stat.S_ISBLK(os.stat(whole).st_mode):
        done.append(whole)
for path in ("mem", "kmsg", "port", "rtc0"):
    if os.path.exists(f"/dev/{path}") and os.stat(f"/dev/{path}").st_rdev != os.makedev(1, 3):
        done.append(path)
try_it("a module", lambda: libc.syscall(175, b"", 0, b"") == 0)
try_it("sysrq", lambda: opened("/proc/sysrq-trigger", os.O_WRONLY))
try_it("host name of the machine", lambda: socket.sethostname("stolen"))
try_it("reboot", lambda: libc.reboot(0x89ABCDEF))  # which Ctrl-Alt-Delete does
try_it("handles", lambda: libc.syscall(304, -100, HANDLE, 0) >= 0)
for number in (1, HARNESS, os.getppid() or 1):
    for name in ("environ", "mem"):
        try_it(f"/proc/{number}/{name}", lambda: open(f"/proc/{number}/{name}", "rb").read(1))
    for name in ("root", "cwd", "fd/0", "fd/3"):
        try_it(f"/proc/{number}/{name}", lambda: os.stat(f"/proc/{number}/{name}"))
    try_it(f"trace {number}", lambda: libc.ptrace(16, number, 0, 0))
if HARNESS != os.getpid():
    try_it("kill the harness", lambda: os.kill(HARNESS, 0))
for number in os.listdir("/proc"):
    if number.isdigit():
        for name in ("environ", "cmdline"):
            try:
                content = open(f"/proc/{number}/{name}", "rb").read()
            except OSError:
                continue
            if b"a-real-" + b"secret" in content:
                done.append(f"the secret at {number}/{name}")
try_it("a socket outside", lambda: socket.socket(socket.AF_UNIX).connect(SOCKET))
print(done)
"""


@modes
def test_an_attempt_of_root_reaches_nothing_of_the_machine(run, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("WANDB_API_KEY", "a-real-secret-of-ours")
    place = tmp_path / "s"
    before = (socket.gethostname(), Path("/proc/mounts").read_text())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        given = f"HARNESS = {os.getpid()}\nSOCKET = {str(place)!r}\n"
        attempt = run(given + ATTACKS)
    assert attempt.output_tail == "[]"
    assert (socket.gethostname(), Path("/proc/mounts").read_text()) == before


@modes
def test_what_programs_of_root_do_in_their_own_place_still_works(run, folder):  # noqa: F811
    (folder / "mine").write_text("x")
    run(
        """
        import ctypes, os, resource, socket
        os.chmod("mine", 0o600)
        os.chown("mine", os.getuid(), os.getgid())
        os.makedirs("a/b")
        os.rename("a", "c")
        os.mkfifo("pipe")
        server = socket.create_server(("127.0.0.1", 80))
        socket.create_connection(("127.0.0.1", 80), 10).close()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        child = os.fork()
        if child == 0:
            os.execvp("true", ["true"])
        assert os.waitpid(child, 0)[1] == 0
        open("/proc/self/environ").read(), os.listdir("/proc/self/fd")
        """
    )


def test_root_may_give_files_away_and_become_another(run):  # noqa: F811
    run(
        """
        import os
        open("given", "w").close()
        os.chown("given", 1234, 1234)
        assert os.stat("given").st_uid == 1234
        os.setgroups([])
        os.setgid(1234)
        os.setuid(1234)
        assert os.getuid() == 1234
        """
    )


def test_a_user_namespace_of_its_own_still_has_mounts(run):  # noqa: F811
    if not works_here():
        pytest.skip("no user namespaces below others here")
    run(
        """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        uid = os.getuid()
        assert libc.unshare(0x10020000) == 0, ctypes.get_errno()
        open("/proc/self/setgroups", "w").write("deny")
        open("/proc/self/uid_map", "w").write(f"0 {uid} 1")
        os.mkdir("m")
        assert libc.mount(b"none", b"m", b"tmpfs", 0, None) == 0, ctypes.get_errno()
        assert libc.mount(b"none", b"/sys", None, 32 | 4096, None) != 0
        assert libc.mount(b"none", b"/proc/sys", None, 32 | 4096, None) != 0
        """
    )


def works_here():
    child = os.fork()
    if child == 0:
        os._exit(int(ctypes.CDLL(None).unshare(0x10020000) != 0))
    return os.waitpid(child, 0)[1] == 0
