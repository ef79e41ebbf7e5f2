"""Four ways to save, from weak to right, in plain Python; each makes several saves.

A checkpoint is a few writes of different sizes and ends in a digest, so that a reader
can tell a whole one; `newest` resumes as an ordinary program would.
"""

import hashlib
import os
from pathlib import Path

SAVES = 3


def parts(step):
    body = [b"head %06d" % step, bytes([step]) * 9000, bytes([step ^ 255]) * 5000]
    return [*body, hashlib.sha256(b"".join(body)).digest()]


def whole(content):
    return hashlib.sha256(content[:-32]).digest() == content[-32:] and int(
        content[5:11]
    )


def _write(path, step, sync=False):
    with open(path, "wb", buffering=0) as file:
        file.writelines(parts(step))
        if sync:
            os.fsync(file.fileno())


def _sync_folder(folder):
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def in_place(folder):
    for step in range(1, SAVES + 1):
        _write(folder / "last", step)


def replaced(folder):
    for step in range(1, SAVES + 1):
        _write(folder / "last.tmp", step)
        os.replace(folder / "last.tmp", folder / "last")


def numbered(folder):
    for step in range(1, SAVES + 1):
        _write(folder / "new.tmp", step)
        os.replace(folder / "new.tmp", folder / f"step-{step}")
        if step > 2:
            os.unlink(folder / f"step-{step - 2}")


def durable(folder):
    for step in range(1, SAVES + 1):
        _write(folder / "last.tmp", step, sync=True)
        os.replace(folder / "last.tmp", folder / "last")
        _sync_folder(folder)


def linked(folder):
    # The pointer is taken away before the new one is there.
    for step in range(1, SAVES + 1):
        _write(folder / f"step-{step}", step, sync=True)
        _sync_folder(folder)
        if os.path.lexists(folder / "last"):
            os.unlink(folder / "last")
        os.symlink(f"step-{step}", folder / "last")
        _sync_folder(folder)


PROTOCOLS = (in_place, replaced, numbered, durable, linked)


def newest(files):
    """Return the step a resume starts from, 0 for the start, None if it fails.

    `files` is path -> bytes, links followed.
    """
    steps = sorted((int(n[5:]) for n in files if n.startswith("step-")), reverse=True)
    name = "last" if "last" in files else f"step-{steps[0]}" if steps else None
    if name is None:
        return 0
    content = files[name]
    return whole(content) or None if len(content) > 43 else None


def as_files(folder):
    return {p.name: p.read_bytes() for p in Path(folder).iterdir() if p.exists()}
