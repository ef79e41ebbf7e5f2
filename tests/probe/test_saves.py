"""Saves and loads: what counts as one, and under which names (rules.md 3)."""

from spotchaos.persistence import oplog
from spotchaos.trace.reading import read_attempt

HEAD = """
import json, os, pickle, torch, numpy
torch.manual_seed(0)
net = torch.nn.Linear(3, 2)
opt = torch.optim.SGD(net.parameters(), 0.01)
def train():
    loss = net(torch.randn(4, 3)).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""


def saves(ran):
    return [(m["n"], m["step"]) for m in ran.of("save")]


def paths(ran):
    return [sorted(m["paths"]) for m in ran.of("saved")]


def test_all_writes_between_two_steps_are_one_save(quick):
    ran = quick(
        HEAD
        + """
for step in range(3):
    train()
    torch.save(net.state_dict(), f"net{step}.pt")
    torch.save(opt.state_dict(), f"opt{step}.pt")
    with open(f"state{step}.json", "w") as f: json.dump({"step": step}, f)
"""
    )
    assert saves(ran) == [(1, 1), (2, 2), (3, 3)]
    assert paths(ran)[1] == ["net1.pt", "opt1.pt", "state1.json"]
    order = [m["site"] for m in ran.of("site") if m["site"].startswith("save")]
    assert order == ["save-begin", "save-end"] * 3


def test_names_follow_renames_of_files_and_folders(quick):
    ran = quick(
        HEAD
        + """
train()
os.makedirs("tmp-1")
torch.save(1, "tmp-1/a.pt")
torch.save(2, "b.pt.tmp")
os.replace("b.pt.tmp", "b.pt")
os.rename("tmp-1", "checkpoint-1")
train()
"""
    )
    assert paths(ran) == [["b.pt", "checkpoint-1/a.pt"]]


def test_logs_make_no_saves(quick):
    ran = quick(
        HEAD
        + """
log = open("train.log", "w")
for step in range(4):
    train()
    log.write("x"); log.flush()
    with open("metrics.csv", "a") as f: f.write("1\\n")
    with open("metrics.json", "w") as f: json.dump({"loss": 1}, f)
    with open(f"plot{step}.png", "wb") as f: f.write(b"x")
    with open("history.json.tmp", "w") as f: f.write("x")
    os.replace("history.json.tmp", "history.json")
    with open("events.out.tfevents.1", "ab") as f: f.write(b"x")
"""
    )
    assert saves(ran) == []
    assert ran.bye["counts"].get("save-begin") is None


def test_a_writer_of_its_own_is_a_save_by_its_name_or_its_rename(quick):
    ran = quick(
        HEAD
        + """
train()
with open("model.bin", "wb") as f: f.write(b"x")
train()
with open("whatever", "w") as f: f.write("x")
os.replace("whatever", "progress_of_run")
train()
with open("blob.tmp", "wb") as f: f.write(b"x")
os.replace("blob.tmp", "blob")
train()
"""
    )
    assert saves(ran) == [(1, 1), (2, 3)]
    assert paths(ran) == [["model.bin"], ["blob"]]


def test_what_goes_into_an_archive_or_a_buffer_is_saved_where_that_goes(quick):
    ran = quick(
        HEAD
        + """
import io, zipfile
def buffer():
    content = io.BytesIO(); torch.save(net.state_dict(), content); return content.getvalue()
train()
with zipfile.ZipFile("model_1.zip", "w") as archive:
    with archive.open("policy.pth", "w") as member: torch.save(net.state_dict(), member)
train()
with open("stage_20", "wb") as f: f.write(buffer())
train()
with open("stage_30", "wb") as f, zipfile.ZipFile(f, "w") as archive:
    with archive.open("policy.pth", "w") as member: torch.save(net.state_dict(), member)
train()
with open("model.pth.gz", "wb") as f: f.write(b"x")
train()
"""
    )
    assert paths(ran) == [["model_1.zip"], ["stage_20"], ["stage_30"], ["model.pth.gz"]]
    assert saves(ran) == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_a_checkpoint_that_is_updated_in_place_is_saved_each_time(quick, place):
    (place.work / "slot1.ckpt").write_bytes(b"old")
    (place.work / "data.bin").write_bytes(b"data")
    ran = quick(
        HEAD
        + """
open("slot1.ckpt", "rb").read()
train()
with open("slot0.ckpt", "w+b") as f: f.write(b"x")
train()
with open("slot1.ckpt", "r+b") as f: f.write(b"x")
train()
with open("slot0.ckpt", "r+b") as f: f.write(b"y")
for step in range(2):
    train()
    open("data.bin", "r+b").read()  # mapped for writing, as numpy does by default
train()
"""
    )
    assert paths(ran) == [["slot0.ckpt"], ["slot1.ckpt"], ["slot0.ckpt"]]
    assert saves(ran) == [(1, 1), (2, 2), (3, 3)]


def test_a_file_that_h5py_opens_in_c_is_written_and_read(quick, place):
    (place.work / "h5py.py").write_text(
        "class File:\n"
        "    def __init__(self, name, mode='r', driver=None): self.args = name, mode, driver\n"
    )
    ran = quick(
        HEAD
        + """
import sys; sys.path.insert(0, os.getcwd())
import h5py, io, pathlib
train()
print(h5py.File("latest.weights.h5", mode="w").args)
train()
h5py.File(io.BytesIO(), "w"); h5py.File("data.h5", "a")
train()
open("old.h5", "w").close(); h5py.File(pathlib.Path("old.h5"), "r", driver="core")
"""
    )
    assert "('latest.weights.h5', 'w', None)" in ran.out
    assert paths(ran)[0] == ["latest.weights.h5"]
    assert saves(ran) == [(1, 1), (2, 3)]  # the second is what it then reads
    assert [m["path"] for m in ran.of("read")] == ["old.h5"]


def test_a_buffer_that_goes_nowhere_makes_no_other_file_a_save(quick):
    ran = quick(
        HEAD
        + """
import io
with open("notes", "w") as f: f.write("x")
train()
torch.save(net.state_dict(), io.BytesIO())
with open("train.log", "w") as f: f.write("x")
train()
with open("notes", "w") as f: f.write("x")
train()
"""
    )
    assert saves(ran) == []


def test_all_known_writers_and_readers_are_followed(quick):
    ran = quick(
        HEAD
        + """
from safetensors.torch import load_file, save_file
from safetensors import safe_open
train(); save_file(net.state_dict(), "a.safetensors")
train(); numpy.save("b.npy", numpy.ones(2)); numpy.savez("c.npz", x=1)
train(); pickle.dump(1, open("d.pkl", "wb"))
train()
import io
torch.save(1, io.BytesIO()); pickle.dumps(1)
train()
torch.save(1, "e.pt")
with open("f.pt", "wb") as f: torch.save(1, f)
load_file("a.safetensors")
with safe_open("a.safetensors", "pt") as f: f.keys()
numpy.load("b.npy"); numpy.load("c.npz")
with open("d.pkl", "rb") as f: pickle.load(f)
torch.load("e.pt")
"""
    )
    assert saves(ran) == [(1, 1), (2, 2), (3, 3), (4, 5)]
    loaded = [(m["path"], m["via"]) for m in ran.of("load")]
    assert loaded == [
        ("a.safetensors", "safetensors"),
        ("a.safetensors", "safetensors"),
        ("b.npy", "numpy.load"),
        ("c.npz", "numpy.load"),
        ("d.pkl", "pickle"),
        ("e.pt", "torch.load"),
    ]
    assert ran.bye["counts"]["load-begin"] == ran.bye["counts"]["load-end"] == 6


def test_what_is_read_below_the_folder_is_marked_once(quick):
    ran = quick(
        HEAD
        + """
open("latest", "w").write("x")
for _ in range(3): open("latest").read()
open("/etc/hostname").read()
"""
    )
    assert [m["path"] for m in ran.of("read")] == ["latest"]


def test_distributed_checkpoints_are_followed(quick):
    ran = quick(
        HEAD
        + """
import warnings; warnings.simplefilter("ignore")
import torch.distributed.checkpoint as dcp
train()
dcp.save({"net": net.state_dict()}, checkpoint_id="ckpt/1", no_dist=True)
train()
state = {"net": net.state_dict()}
dcp.load(state, checkpoint_id="ckpt/1", no_dist=True)
"""
    )
    assert saves(ran) == [(1, 1)]
    assert "ckpt/1/.metadata" in paths(ran)[0]
    assert [(m["path"], m["via"]) for m in ran.of("load")] == [("ckpt/1", "dcp")]


def test_a_save_of_the_first_state_has_a_state(quick):
    ran = quick(HEAD + "torch.save(1, 'a.pt')\ntrain()\n")
    assert saves(ran) == [(1, 0)]
    assert ran.states("save")[0]["c"]["weights"] == ran.column("weights")[0]


def test_a_background_writer_belongs_to_the_save_that_began(quick):
    ran = quick(
        HEAD
        + """
import threading
train()
ready = threading.Event()
def write():
    torch.save(1, "a.pt")
    ready.wait()
    torch.save(1, "b.pt")
t = threading.Thread(target=write); t.start()
while not os.path.exists("a.pt"): pass
train(); ready.set(); t.join(); train()
"""
    )
    assert [m["n"] for m in ran.of("save")] == [1, 2]
    assert {p for ps in paths(ran) for p in ps} == {"a.pt", "b.pt"}


def test_what_a_thread_saves_is_known_by_the_weights_in_it(quick):
    ran = quick(
        HEAD
        + """
import copy, threading
def save(state):
    torch.save(state, "a.pt.tmp"); os.replace("a.pt.tmp", "a.pt")
    with open("b.pt", "wb") as f: torch.save({"model": state, "more": [1]}, f)
    torch.save({"other": torch.ones(3)}, "c.pt")
train()
state = copy.deepcopy(net.state_dict())
train()
t = threading.Thread(target=save, args=({"model": state, "step": 1},)); t.start()
t.join(); train()
torch.save(net.state_dict(), "d.pt"); train()
"""
    )
    assert [(m["step"], m.get("beside", False)) for m in ran.of("save")] == [
        (2, True),
        (3, False),
    ]
    held = [m["weights"] for m in ran.of("held")]
    assert held == [[ran.column("weights")[1]], ["live"]]


def test_a_copy_is_known_by_its_weights_on_the_thread_that_trains_as_well(quick):
    ran = quick(
        HEAD
        + """
import copy
train()
state = {"model": copy.deepcopy(net.state_dict()), "best": net.state_dict()}
train(); torch.save({"model": state["model"]}, "copy.pt")
train(); torch.save(state, "both.pt")
train(); torch.save({"other": torch.ones(3)}, "none.pt"); train()
"""
    )
    assert paths(ran) == [["copy.pt"], ["both.pt"], ["none.pt"]]
    held = [(m["n"], m["weights"]) for m in ran.of("held")]
    assert held == [(1, [ran.column("weights")[1]]), (2, ["live"])]


def test_two_states_that_a_thread_writes_while_training_waits_are_two_saves(quick):
    ran = quick(
        HEAD
        + """
import copy, threading
states = []
for _ in range(2):
    train(); states.append(copy.deepcopy(net.state_dict()))
def save():
    for n, state in enumerate(states): torch.save(state, f"{n}.pt")
t = threading.Thread(target=save); t.start(); t.join(); train()
"""
    )
    assert paths(ran) == [["0.pt"], ["1.pt"]]
    held = [m["weights"] for m in ran.of("held")]
    assert held == [[digest] for digest in ran.column("weights")[1:3]]


def test_files_that_an_asynchronous_save_writes_later_are_of_that_save(quick):
    ran = quick(
        HEAD
        + """
import threading, warnings
warnings.simplefilter("ignore")
import torch.distributed.checkpoint as dcp
go = threading.Event()
class Writer(dcp.FileSystemWriter):
    def write_data(self, plan, planner):
        go.wait()
        return super().write_data(plan, planner)
train()
future = dcp.async_save(
    {"net": net.state_dict()}, storage_writer=Writer("step1"), no_dist=True
)
train(); go.set(); future.result(); train(); torch.save(1, "next.pt")
"""
    )
    assert saves(ran) == [(1, 1), (2, 3)]
    assert "step1/.metadata" in {p for ps in paths(ran) for p in ps}


def test_a_forked_child_that_only_saves_is_heard_before_it_ends(quick):
    ran = quick(
        HEAD
        + """
train()
if os.fork() == 0:
    torch.save({"model": net.state_dict()}, "a.pt.tmp")
    os.replace("a.pt.tmp", "a.pt")
    os._exit(0)
os.wait()
train()
"""
    )
    assert saves(ran) == []  # of the process that trains
    [trace] = read_attempt(ran.trace).ranks.values()
    [save] = trace.saves
    assert (save.is_beside, save.holds, save.step) == (True, 1, 1)
    assert "a.pt" in save.paths
    assert save.ended_at_s is not None


IN_MEMORY = """
import io
for step in range(2):
    train()
    torch.save(net.state_dict(), io.BytesIO())
train()
torch.save(1, "last.pt")
train()
torch.save(1, io.BytesIO())
"""


def test_what_is_saved_to_memory_is_a_save_where_there_is_a_store(quick):
    ran = quick(HEAD + IN_MEMORY, store=True)
    assert saves(ran) == [(1, 1), (2, 2), (3, 3)]
    assert paths(ran) == [[], [], ["last.pt"]]
    assert saves(quick(HEAD + IN_MEMORY)) == [(1, 3)]


DOWNLOADED = """
import io
found = io.BytesIO()
torch.save(net.state_dict(), found)
found.seek(0)
net.load_state_dict(torch.load(found))
train()
"""


def test_what_is_loaded_from_memory_is_a_load_where_there_is_a_store(quick):
    def reached(**orders):
        ran = quick(HEAD + DOWNLOADED, mark_every_site=True, **orders)
        return [m["site"] for m in ran.of("site") if m["site"].startswith("load")]

    assert reached(store=True) == ["load-begin", "load-end"]
    assert reached() == []


def test_a_save_is_recorded_within_python_where_nothing_outside_may(place):
    told = place.path / "ops"
    code = "train()\ntorch.save(net.state_dict(), 'a.pt')\ntrain()\n"
    ran = place.run(HEAD + code, record=str(told))
    assert saves(ran) == [(1, 1)]
    log = oplog.read(told)
    assert log.complete
    written = [op for op in log.ops if op.number]
    assert {op.path for op in written} == {"0/a.pt"}
    assert sum(op.length for op in written if op.kind == "write") > 100
