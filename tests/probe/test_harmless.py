"""The probe changes nothing: no bit, no stream, no import, no child (rules.md 4)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / "scenarios" / "programs"

PRINTS_EVERYTHING = """
import hashlib, random, numpy, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0); random.seed(0); numpy.random.seed(0)
data = TensorDataset(torch.randn(48, 8), torch.randint(0, 2, (48,)))
net = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 2))
ema = torch.optim.swa_utils.AveragedModel(net)
opt = torch.optim.AdamW(net.parameters(), 1e-2, foreach=True)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=24)
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=8, shuffle=True, num_workers=%d):
        x = x + random.random() + float(numpy.random.rand()) + torch.randn(())
        loss = torch.nn.functional.cross_entropy(net(x), y)
        opt.zero_grad(); loss.backward(); opt.step(); sched.step(); ema.update_parameters(net)
    with torch.no_grad():
        net.eval(); net(data.tensors[0]); net.train()
    torch.save(net.state_dict(), "net.pt")
h = hashlib.sha256()
for t in [*net.state_dict().values(), *ema.state_dict().values(), torch.get_rng_state()]:
    h.update(t.numpy().tobytes())
for s in opt.state.values():
    for v in s.values(): h.update(v.numpy().tobytes())
print(h.hexdigest(), random.random(), numpy.random.rand(), torch.rand(1).item(), sched.get_last_lr())
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_with_the_probe_equals_one_without(place, workers):
    bare = place.run(PRINTS_EVERYTHING % workers, probe=False)
    for fingerprint in ("all", "light"):
        ran = place.run(PRINTS_EVERYTHING % workers, fingerprint=fingerprint)
        assert len(ran.steps) == 12
        assert ran.troubles == []
        assert ran.out == bare.out


def test_two_runs_have_the_same_fingerprints(place):
    first = place.run(PRINTS_EVERYTHING % 0)
    again = place.run(PRINTS_EVERYTHING % 0)
    assert [s["c"] for s in first.states()] == [s["c"] for s in again.states()]
    assert [s["c"] for s in first.steps] == [s["c"] for s in again.steps]


def test_without_orders_nothing_of_ours_is_loaded(place):
    env, _ = place.environment()
    del env["SPOTCHAOS_ORDERS"]
    code = (
        "import sys; print([m for m in sys.modules if m.split('.')[0] == 'spotchaos'])"
    )
    command = [sys.executable, "-c", code]
    out = subprocess.run(
        command, env=env, cwd=place.work, capture_output=True, text=True, check=True
    )
    assert (out.stdout, out.stderr) == ("[]\n", "")


def test_the_hidden_sitecustomize_runs(place):
    hidden = place.path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import builtins; builtins.hidden_ran = 7\n"
    )
    env, trace = place.environment()
    env["PYTHONPATH"] += f":{hidden}"
    code = "import sitecustomize; print(hidden_ran, sitecustomize.__file__)"
    command = [sys.executable, "-c", code]
    out = subprocess.run(
        command, env=env, cwd=place.work, capture_output=True, text=True, check=True
    )
    assert out.stdout == f"7 {hidden}/sitecustomize.py\n"
    assert list(trace.glob("*.trace"))


def test_the_programs_own_spotchaos_is_the_one_it_imports(place):
    own = place.path / "own"
    (own / "spotchaos").mkdir(parents=True)
    (own / "spotchaos" / "__init__.py").write_text("mine = True\n")
    env, _ = place.environment()
    env["PYTHONPATH"] += f":{own}"
    code = "import spotchaos, sys; print(spotchaos.mine, spotchaos.probe.__name__)"
    command = [sys.executable, "-c", code]
    out = subprocess.run(
        command, env=env, cwd=place.work, capture_output=True, text=True, check=True
    )
    assert out.stdout == "True spotchaos.probe\n"
    bare = "import sys; print('spotchaos' in sys.modules)"
    command = [sys.executable, "-c", bare]
    out = subprocess.run(
        command, env=env, cwd=place.work, capture_output=True, text=True, check=True
    )
    assert out.stdout == "False\n"


def test_torch_is_never_imported_by_us(place):
    ran = place.run("import sys; print('torch' in sys.modules, 'numpy' in sys.modules)")
    assert ran.out == "False False\n"
    # It trains nothing, and so has no site but its start.
    assert [m["k"] for m in ran.marks] == ["hello", "site", "bye"]


def test_the_end_of_the_program_is_told(place):
    script = "def f():\n    json.loads('{')\nimport json\nf()\n"
    ran = place.run(script, code=1)
    assert ran.bye["exception"]["type"] == "JSONDecodeError"
    assert ran.bye["exception"]["file"].endswith("program.py")
    assert ran.bye["exception"]["line"] == 2
    assert "Traceback" in ran.out
    assert "spotchaos" not in ran.out


def test_an_error_of_the_probe_is_a_note_and_no_more(quick):
    ran = quick(
        """
        import torch
        from spotchaos.probe import window
        class Broken:
            def __init__(self, *_): raise ZeroDivisionError("ours")
        window.Found = Broken
        net = torch.nn.Linear(2, 2)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            net(torch.ones(1, 2)).sum().backward()
            opt.step()
        print("fine")
        """
    )
    assert ran.out == "fine\n"
    assert len(ran.steps) == 3
    assert "ZeroDivisionError" in ran.troubles[0]["message"]


def test_the_whole_model_pickles_as_before(quick):
    ran = quick(
        """
        import pickle, torch
        net = torch.nn.Sequential(torch.nn.Linear(2, 2))
        opt = torch.optim.SGD(net.parameters(), 0.1)
        net(torch.ones(1, 2)).sum().backward(); opt.step()
        assert b"spotchaos" not in pickle.dumps([net, opt])
        assert "fused" in __import__("inspect").signature(torch.optim.AdamW).parameters
        """
    )
    assert len(ran.steps) == 1


def test_seeds_threads_and_determinism_come_from_outside(place):
    script = """
    import random, numpy, torch
    print(random.random(), numpy.random.rand(), torch.rand(1).item(), torch.get_num_threads())
    """
    first = place.run(script, seed_program=7, threads=2)
    again = place.run(script, seed_program=7, threads=2)
    other = place.run(script, seed_program=8, threads=2)
    assert first.out == again.out != other.out
    assert first.out.endswith(" 2\n")


def test_tensors_of_a_step_are_dumped_for_numpy(quick, place):
    into = place.path / "dump"
    into.mkdir()
    script = """
    import torch
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2).to(torch.bfloat16)
    opt = torch.optim.AdamW(net.parameters(), 0.1)
    for step in range(3):
        net(torch.full((4, 3), float(step), dtype=torch.bfloat16)).sum().backward()
        opt.step(); opt.zero_grad()
        if step == 1: print(net.weight.detach().view(torch.int16).flatten().tolist())
    """
    wanted = ["weights", "optimizer", "gradients", "loss", "batch"]
    ran = quick(script, dump={"step": 2, "components": wanted, "folder": str(into)})
    dumps = {m["component"]: Path(m["file"]) for m in ran.of("dump")}
    assert sorted(dumps) == sorted(wanted)
    import numpy as np

    index = json.loads(dumps["weights"].read_text())
    entry = next(t for t in index["tensors"] if t["name"] == "weight")
    assert (entry["torch_dtype"], entry["shape"]) == ("bfloat16", [2, 3])
    raw = (dumps["weights"].parent / index["data"]).read_bytes()
    part = raw[entry["offset"] : entry["offset"] + entry["bytes"]]
    found = np.frombuffer(part, entry["dtype"]).astype("<u2").view("<i2").tolist()
    assert found == json.loads(ran.out)
    batch = json.loads(dumps["batch"].read_text())
    assert batch["tensors"][0]["shape"] == [4, 3]


def test_the_state_that_a_step_starts_from_is_dumped_with_what_it_makes(quick, place):
    into = place.path / "dump"
    into.mkdir()
    script = """
    import torch
    torch.manual_seed(0)
    net = torch.nn.Linear(1, 1, bias=False)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(3):
        if step == 1: print(net.weight.item())
        opt.zero_grad(); net(torch.ones(1, 1) * step).sum().backward(); opt.step()
    """
    ran = quick(
        script,
        dump={
            "step": 2,
            "state_of": 1,
            "components": ["weights", "gradients"],
            "folder": str(into),
        },
    )
    found = {(m["component"], m["step"]): Path(m["file"]) for m in ran.of("dump")}
    assert sorted(found) == [("gradients", 2), ("weights", 1)]
    index = found["weights", 1]
    (value,) = memoryview((index.parent / (index.stem + ".bin")).read_bytes()).cast("f")
    assert value == float(ran.out)
    assert json.loads(index.read_text())["tensors"][0]["name"] == "weight"


def test_a_module_that_is_traced_is_called_as_it_would_be(quick):
    # As tensorboard's add_graph does it: twice, and the graphs must be equal. Were ours a
    # part of one of them, the program would end here.
    ran = quick(
        """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
opt = torch.optim.SGD(net.parameters(), 0.1)
traced = torch.jit.trace(net, torch.randn(8, 4))
for step in range(3):
    net(torch.randn(8, 4)).square().mean().backward()
    opt.step(); opt.zero_grad()
"""
    )
    assert ran.troubles == []
    assert len(ran.steps) == 3
    assert {"weights", "optimizer"} <= ran.states()[0]["c"].keys()
