"""Op logs made in memory, op by op, as the supervisor would record them."""

import pytest

from spotchaos.persistence.history import History
from spotchaos.persistence.oplog import Entry, FileOp, OpLog

ROOT = 1


class Scribe:
    """Writes an op log; every method is one op and returns its number."""

    def __init__(self):
        self.start = [Entry(path="", node=ROOT, kind="dir")]
        self.ops = []
        self.blob = b""
        self.nodes = {}
        self.next = 2
        self.rank = None
        self.now_s = 0.0

    def add(self, kind, **fields):
        number = 1 + sum(op.number is not None for op in self.ops)
        self.now_s += 0.01
        self.ops.append(
            FileOp(kind=kind, number=number, rank=self.rank, at_s=self.now_s, **fields)
        )
        return number

    def new(self, path):
        self.nodes[path] = self.next
        self.next += 1
        return self.nodes[path]

    def creat(self, path):
        return self.add("creat", path=path, node=self.new(path))

    def mkdir(self, path):
        return self.add("mkdir", path=path, node=self.new(path))

    def symlink(self, target, path):
        return self.add("symlink", path=path, node=self.new(path), target=target)

    def write(self, path, content, offset=0):
        at = len(self.blob)
        self.blob += content
        return self.add(
            "write", path=path, node=self.nodes[path], offset=offset,
            length=len(content), data_off=at,
        )  # fmt: skip

    def trunc(self, path, length=0):
        return self.add("trunc", path=path, node=self.nodes[path], length=length)

    def rename(self, path, to):
        node, over = self.nodes[path], self.nodes.get(to)
        for old in [p for p in self.nodes if p == path or p.startswith(path + "/")]:
            self.nodes[to + old[len(path) :]] = self.nodes.pop(old)
        return self.add("rename", path=path, to=to, node=node, over=over)

    def unlink(self, path):
        return self.add("unlink", path=path, node=self.nodes.pop(path))

    def link(self, path, to):
        self.nodes[to] = self.nodes[path]
        return self.add("link", path=path, to=to, node=self.nodes[path])

    def fsync(self, path):
        return self.add("fsync", path=path, node=self.nodes[path])

    def fsyncdir(self, path=""):
        return self.add("fsyncdir", path=path, node=self.nodes.get(path, ROOT))

    def history(self):
        log = OpLog(start=tuple(self.start), ops=tuple(self.ops), blob=self.blob)
        return History(log)


@pytest.fixture
def scribe():
    return Scribe()


@pytest.fixture(scope="session")
def make_scribe():
    return Scribe
