# ruff: noqa: TID251 - os.rename is one of the ways
"""Every way in which a program brings bytes to a disk; each is run under supervision.

Run as `python writers.py NAME FOLDER`; every function gets an empty folder.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path


def state(megabytes=0.05):
    import torch

    torch.manual_seed(0)
    return {
        "w": torch.randn(int(megabytes * 250_000)),
        "b": torch.randn(333),
        "step": 7,
    }


def torch_path(folder):
    import torch

    torch.save(state(), str(folder / "ckpt.pt"))


def torch_file(folder):
    import torch

    with open(folder / "ckpt.pt", "wb") as file:
        torch.save(state(), file)


def torch_legacy(folder):
    import torch

    torch.save(state(), folder / "ckpt.pt", _use_new_zipfile_serialization=False)


def torch_in_place_twice(folder):
    import torch

    torch.save(state(), str(folder / "ckpt.pt"))
    torch.save(state(0.02), str(folder / "ckpt.pt"))


def safetensors_save(folder):
    from safetensors.torch import save_file

    value = state()
    save_file({"w": value["w"], "b": value["b"]}, str(folder / "model.safetensors"))


def dcp(folder):
    import torch.distributed.checkpoint as dcp

    writer = dcp.FileSystemWriter(
        str(folder / "step-1"), single_file_per_rank=False, thread_count=2
    )
    dcp.save({"model": state()}, storage_writer=writer)


def dcp_async(folder):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dcp.async_save({"model": state()}, checkpoint_id=str(folder / "step-1")).result()
    dist.destroy_process_group()


def numpy_all(folder):
    import numpy as np

    array = np.arange(50_000, dtype=np.float64)
    np.save(folder / "a.npy", array)
    np.savez(folder / "b.npz", one=array, two=array[:100])
    array.tofile(folder / "c.bin")


def numpy_memmap(folder):
    import numpy as np

    mapped = np.memmap(folder / "m.bin", dtype=np.float32, mode="w+", shape=(30_000,))
    mapped[:] = 1.5
    (folder / "between").write_bytes(b"an op, so that stores before it are seen")
    mapped[5000:5100] = 2.5
    mapped.flush()
    mapped[29_999] = 3.5
    del mapped
    again = np.memmap(folder / "m.bin", dtype=np.float32, mode="r+")
    again[7] = 9.0


def torch_from_file(folder):
    import torch

    tensor = torch.from_file(str(folder / "t.bin"), shared=True, size=20_000)
    tensor.fill_(4.25)
    (folder / "latest").write_text("t.bin")


def shutil_copies(folder):
    (folder / "a").write_bytes(os.urandom(300_000))
    shutil.copyfile(folder / "a", folder / "b")
    (folder / "tree" / "deep").mkdir(parents=True)
    (folder / "tree" / "deep" / "x").write_bytes(b"x" * 5000)
    shutil.copytree(folder / "tree", folder / "copy")
    shutil.rmtree(folder / "tree")
    shutil.move(folder / "copy", folder / "moved")


def copy_ranges(folder):
    (folder / "a").write_bytes(os.urandom(100_000))
    with open(folder / "a", "rb") as source, open(folder / "b", "wb") as target:
        os.copy_file_range(source.fileno(), target.fileno(), 40_000)
        os.copy_file_range(source.fileno(), target.fileno(), 30_000, 10, 50_000)
        os.sendfile(target.fileno(), source.fileno(), 60_000, 20_000)


def names(folder):
    (folder / "a").write_bytes(b"one")
    os.replace(folder / "a", folder / "b")
    (folder / "a").write_bytes(b"two")
    os.replace(folder / "a", folder / "b")
    os.link(folder / "b", folder / "c")
    os.symlink("c", folder / "latest.tmp")
    os.replace(folder / "latest.tmp", folder / "latest")
    (folder / "d").mkdir()
    (folder / "d" / "e").write_bytes(b"inside")
    os.rename(folder / "d", folder / "f")
    with open(folder / "latest", "ab") as through_the_link:
        through_the_link.write(b" more")
    os.unlink(folder / "b")
    folder_fd = os.open(folder, os.O_RDONLY)
    os.rename("c", "g", src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    os.fsync(folder_fd)
    os.close(folder_fd)
    os.chdir(folder / "f")
    Path("e2").write_bytes(b"relative")
    os.mknod("n", 0o600)
    os.rename("../f/e2", "../h")


def exchange(folder):
    import ctypes

    (folder / "a").write_bytes(b"a")
    (folder / "d").mkdir()
    (folder / "d" / "x").write_bytes(b"x")
    libc = ctypes.CDLL(None, use_errno=True)
    pair = [os.fsencode(folder / "a"), os.fsencode(folder / "d")]
    assert libc.renameat2(-100, pair[0], -100, pair[1], 2) == 0
    (folder / "b").write_bytes(b"b")
    assert libc.renameat2(-100, os.fsencode(folder / "b"), -100, pair[0], 1) == -1
    assert ctypes.get_errno() == 17


def sizes(folder):
    fd = os.open(folder / "s", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 10_000)
    os.pwrite(fd, b"z" * 100, 9_950)
    os.posix_fallocate(fd, 0, 20_000)
    os.pwritev(fd, [b"ab", b"", b"cd"], 5, os.RWF_DSYNC)
    os.lseek(fd, 300, os.SEEK_SET)
    os.writev(fd, [b"1" * 10, b"2" * 20])
    os.ftruncate(fd, 15_000)
    os.fsync(fd)
    os.fdatasync(fd)
    os.close(fd)
    os.truncate(folder / "s", 12_345)
    with open(folder / "s", "ab") as file:
        file.write(b"appended")
    os.sync()


def punch(folder):
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(folder / "s", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"y" * 30_000)
    assert libc.fallocate(fd, 3, ctypes.c_int64(5000), ctypes.c_int64(9000)) == 0
    assert libc.fallocate(fd, 1, ctypes.c_int64(0), ctypes.c_int64(90_000)) == 0
    os.close(fd)


def nameless(folder):
    fd = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o644)
    os.write(fd, b"linked when whole")
    os.link(f"/proc/self/fd/{fd}", folder / "final", src_dir_fd=0, follow_symlinks=True)
    os.write(fd, b", and written to afterwards")
    os.close(fd)
    with tempfile.TemporaryFile(dir=folder) as lost:
        lost.write(b"never named")


def from_outside(folder):
    with tempfile.TemporaryDirectory(dir=folder.parent) as outside:
        Path(outside, "whole").write_bytes(b"w" * 9000)
        Path(outside, "tree").mkdir()
        Path(outside, "tree", "leaf").write_bytes(b"leaf")
        os.rename(Path(outside, "whole"), folder / "whole")
        os.rename(Path(outside, "tree"), folder / "tree")
        (folder / "gone").write_bytes(b"gone")
        os.rename(folder / "gone", Path(outside, "gone"))
    with open(folder / "whole", "r+b") as file:
        file.write(b"W")


def threads(folder):
    def one(k):
        for i in range(5):
            path = folder / f"{k}.tmp"
            with open(path, "wb") as file:
                file.write(bytes([k]) * (1000 + i))
                file.flush()
                os.fsync(file.fileno())
            os.replace(path, folder / f"{k}")

    running = [threading.Thread(target=one, args=(k,)) for k in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def children(folder):
    if os.fork() == 0:
        (folder / "forked").write_bytes(b"by a child")
        os._exit(0)
    os.wait()
    code = f"open({str(folder / 'spawned')!r}, 'wb').write(b'by another program')"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)
    subprocess.run(["cp", folder / "spawned", folder / "copied"], check=True)
    subprocess.run(["mv", folder / "copied", folder / "moved"], check=True)
    reading, writing = os.pipe()
    if os.fork() == 0:
        # A daemon: its parent is gone before it writes.
        os.setsid()
        if os.fork() == 0:
            os.close(reading)
            (folder / "daemon").write_bytes(b"by a daemon")
            os.write(writing, b"x")
            os._exit(0)
        os._exit(0)
    os.close(writing)
    assert os.read(reading, 1) == b"x"


def large(folder):
    block = os.urandom(1 << 20)
    with open(folder / "big", "wb") as file:
        file.writelines(block for _ in range(3))
        file.write(block * 5)


def reopened(folder):
    with open(folder / "a", "wb") as file:
        file.write(b"0123456789")
        with open(f"/proc/self/fd/{file.fileno()}", "r+b") as again:
            again.write(b"AB")
        copy = os.dup(file.fileno())
        os.write(copy, b"shared offset")
        os.close(copy)
    os.unlink(folder / "a")
    with open(folder / "log.log", "wb") as ignored:
        ignored.write(b"an ignored name")
    os.rename(folder / "log.log", folder / "kept")


WRITERS = [
    torch_path, torch_file, torch_legacy, torch_in_place_twice, safetensors_save, dcp,
    dcp_async, numpy_all, numpy_memmap, torch_from_file, shutil_copies, copy_ranges,
    names, exchange, sizes, punch, nameless, from_outside, threads, children, large,
    reopened,
]  # fmt: skip

if __name__ == "__main__":
    {w.__name__: w for w in WRITERS}[sys.argv[1]](Path(sys.argv[2]))
