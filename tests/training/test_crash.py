"""Save, retain, crash, go on: whatever a weak disk keeps, the newest whole one is right.

The disk is the strictest that POSIX allows: a name is durable once its folder is synced,
bytes once their file is, and everything else may be lost or torn on its own.
"""

import os
import shutil
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spotchaos.training import manifest as manifests
from spotchaos.training.checkpoint import CheckpointStore
from spotchaos.training.manifest import Manifest

TEARS = ("all", "none", "half", "zeros")


class Recorder:
    """Writes down what the real code does to the files below a folder, in order.

    Ops are tuples: (kind, path, ...), paths relative to the folder.
    """

    def __init__(self, root):
        self.root = str(root)
        self.ops = []
        self._dirty = {}

    def relative(self, path, dir_fd=None):
        path = os.fspath(path)
        if dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        path = os.path.abspath(path)
        inside = path == self.root or path.startswith(self.root + os.sep)
        return os.path.relpath(path, self.root) if inside else None

    def note(self, *op):
        self.settle()
        self.ops.append(op)

    def settle(self):
        """Write down the bytes that have reached files since the last op."""
        for path, known in list(self._dirty.items()):
            try:
                data = Path(self.root, path).read_bytes()
            except FileNotFoundError:
                del self._dirty[path]
                continue
            if data != known:
                self._dirty[path] = data
                self.ops.append(("write", path, data))

    @contextmanager
    def recording(self, skip=()):
        """Record everything done inside; leave out the kinds in `skip`."""
        real = {
            n: getattr(os, n)
            for n in ("open", "fsync", "replace", "unlink", "mkdir", "rmdir")
        }

        def open_(path, flags, mode=0o777, *, dir_fd=None):
            name = self.relative(path, dir_fd)
            descriptor = real["open"](path, flags, mode, dir_fd=dir_fd)
            if name is not None and flags & os.O_CREAT:
                self.note("create", name)
                self._dirty[name] = b""
            return descriptor

        def fsync(descriptor):
            name = self.relative(os.readlink(f"/proc/self/fd/{descriptor}"))
            is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            kind = "fsyncdir" if is_folder else "fsync"
            if name is not None and kind not in skip:
                self.note(kind, name)

        def replace(source, target, **more):
            names = self.relative(source), self.relative(target)
            if None not in names:
                self.note("rename", *names)
                self._dirty.pop(names[0], None)
            real["replace"](source, target, **more)

        def gone(kind, function):
            def act(path, *, dir_fd=None):
                name = self.relative(path, dir_fd)
                function(path, dir_fd=dir_fd)
                if name is not None:
                    self._dirty.pop(name, None)
                    self.note(kind, name)

            return act

        def mkdir(path, mode=0o777, *, dir_fd=None):
            real["mkdir"](path, mode, dir_fd=dir_fd)
            name = self.relative(path, dir_fd)
            if name is not None:
                self.note("mkdir", name)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "open", open_)
            patch.setattr(os, "fsync", fsync)
            patch.setattr(os, "replace", replace)
            patch.setattr(os, "mkdir", mkdir)
            patch.setattr(os, "unlink", gone("unlink", real["unlink"]))
            patch.setattr(os, "rmdir", gone("rmdir", real["rmdir"]))
            yield
            self.settle()


def after_crash(start, ops, choose):
    """Return what a weak disk may hold after `ops`: path -> bytes, or None for a folder.

    Args:
        start: what it held before, all of it durable.
        ops: what was done, oldest first.
        choose: given a tuple of outcomes, picks one.
    """
    names = {path: ("node", path) for path in start}
    content = {("node", path): data for path, data in start.items()}
    for number, op in enumerate(ops):
        kind, path = op[0], op[1]
        later = ops[number + 1 :]
        if kind == "write":
            node = names.get(path)
            if node is None:  # the file's own creation was lost
                continue
            data = op[2]
            is_safe = ("fsync", path) in later
            tear = "all" if is_safe else choose(TEARS)
            if tear == "half":
                data = data[: len(data) // 2]
            elif tear == "zeros":
                data = bytes(len(data))
            if tear != "none":
                content[node] = data
        elif kind in ("create", "mkdir", "rename", "unlink", "rmdir"):
            target = op[2] if kind == "rename" else path
            folders = {os.path.dirname(target) or ".", os.path.dirname(path) or "."}
            is_safe = all(("fsyncdir", folder) in later for folder in folders)
            if not is_safe and not choose((True, False)):
                if (
                    kind == "create"
                ):  # the bytes have nowhere to be, unless renamed later
                    names.pop(path, None)
                continue
            if kind == "create":
                names[path] = ("made", number)
                content[("made", number)] = b""
            elif kind == "mkdir":
                names[path] = ("folder", number)
                content[("folder", number)] = None
            elif kind == "rename" and path in names:
                names[target] = names.pop(path)
            elif kind in ("unlink", "rmdir"):
                names.pop(path, None)
    return {
        path: content[node]
        for path, node in names.items()
        if all(str(parent) in names for parent in list(Path(path).parents)[:-1])
    }


def materialise(state, root):
    root.mkdir(parents=True, exist_ok=True)
    for path, data in sorted(state.items()):
        if data is None:
            (root / path).mkdir(parents=True, exist_ok=True)
        else:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)


def listing(root):
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
        for path in root.rglob("*")
    }


def state_of(step, tag):
    return {"step": step, "w": torch.full((64,), float(tag))}


class Disk(RuleBasedStateMachine):
    """A run that saves, is retained and crashes, beside a model of what must be there."""

    skip = ()

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.number = 0
        self.tag = 0
        self.step = 0
        self.durable = None  # (step, tag) of the newest save that has returned
        self.new_disk({}, keep=1)

    def teardown(self):
        shutil.rmtree(self.folder)

    def new_disk(self, state, keep):
        self.number += 1
        root = self.folder / str(self.number)
        materialise(state, root)
        self.recorder = Recorder(root)
        self.start = listing(root)
        self.store = CheckpointStore(root, run_id="run", keep=keep)
        with self.recorder.recording(self.skip):
            self.store.prepare()

    def save_now(self, steps, score=None):
        self.step += steps
        self.tag += 1
        with self.recorder.recording(self.skip):
            self.store.save(state_of(self.step, self.tag), step=self.step, score=score)

    @rule(steps=st.integers(0, 3), score=st.sampled_from([None, 1.0, 2.0, 3.0]))
    def save(self, steps, score):
        before = self.scores()
        self.save_now(steps, score)
        self.durable = (self.step, self.tag)
        kept = self.scores()
        (new,) = kept.keys() - before.keys()
        assert kept.keys() == self.what_stays({new: score, **before}) | {new}

    def scores(self):
        """Return the score of each checkpoint that is there, newest first."""
        return {
            folder.name: Manifest.parse(
                (folder / manifests.NAME).read_bytes(), of=folder.name
            ).score
            for folder in self.store.committed()
        }

    def what_stays(self, scores):
        """Say what retention leaves of checkpoints: the newest ones, and the best."""
        newest = list(scores)
        scored = [name for name in newest if scores[name] is not None]
        best = min(scored, key=scores.get, default=newest[0])
        return {best, *newest[: self.store.keep]}

    @precondition(lambda self: self.recorder.ops)
    @rule(data=st.data(), keep=st.integers(1, 2))
    def crash_between_saves(self, data, keep):
        self.crash(data, keep, len(self.recorder.ops), {self.durable})

    @rule(data=st.data(), steps=st.integers(0, 3), keep=st.integers(1, 2))
    def crash_within_a_save(self, data, steps, keep):
        before = len(self.recorder.ops)
        self.save_now(steps)
        cut = data.draw(st.integers(before, len(self.recorder.ops)))
        self.crash(data, keep, cut, {self.durable, (self.step, self.tag)})

    def crash(self, data, keep, cut, allowed):
        bits = data.draw(st.randoms(use_true_random=False))
        state = after_crash(self.start, self.recorder.ops[:cut], bits.choice)
        self.new_disk(state, keep)
        found = self.found()
        assert found in allowed
        self.durable = found
        self.step = found[0] if found else 0

    def found(self):
        state = self.store.load_latest()
        if state is None:
            return None
        tag = int(state["w"][0].item())
        assert torch.equal(state["w"], state_of(state["step"], tag)["w"])
        return state["step"], tag

    @invariant()
    def what_is_durable_is_found(self):
        assert self.found() == self.durable


class WithoutFileSync(Disk):
    skip = ("fsync",)


class WithoutFolderSync(Disk):
    skip = ("fsyncdir",)


limits = settings(max_examples=40, stateful_step_count=8)
TestDisk = Disk.TestCase
TestDisk.settings = limits
# Only whether it fails matters here, not the simplest way.
blunt = settings(
    max_examples=100, stateful_step_count=8, database=None,
    phases=[Phase.generate], report_multiple_bugs=False,
)  # fmt: skip


@pytest.mark.parametrize("weak", [WithoutFileSync, WithoutFolderSync])
def test_without_its_syncs_it_would_lose_a_checkpoint(weak):
    # Teeth: a disk that never loses anything would pass the test above as well.
    from hypothesis.stateful import run_state_machine_as_test

    with pytest.raises(BaseException):  # noqa: B017, PT011 - of whatever kind the loss shows
        run_state_machine_as_test(weak, settings=blunt)
