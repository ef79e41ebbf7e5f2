"""Counting steps: every case of facts.md section 2."""

import sys
from pathlib import Path

import pytest

from spotchaos.probe.session import role_of
from spotchaos.trace.reading import read_attempt

PROGRAMS = Path(__file__).parents[2] / "scenarios" / "programs" / "steps"

ONE_A_STEP = {"optimizer": 10, "backward": 10, "batch": 0}
COUNTED = {
    "plain": (10, ONE_A_STEP),
    "foreach": (10, ONE_A_STEP),
    "fused": (10, ONE_A_STEP),
    "own_hooks": (10, ONE_A_STEP),
    "compiled_model": (10, ONE_A_STEP),
    "compiled_step": (10, ONE_A_STEP),
    "compiled_whole_step": (10, ONE_A_STEP),
    "subclass_step": (10, ONE_A_STEP),
    "subclass_super_step": (10, ONE_A_STEP),
    "dcp_state_dict": (10, ONE_A_STEP),
    "scaler_skips_inf": (2, {"optimizer": 2, "backward": 10, "batch": 0}),
    "two_optimizers": (10, {"optimizer": 15, "backward": 10, "batch": 0}),
    "optimizer_per_parameter": (10, {"optimizer": 40, "backward": 10, "batch": 0}),
    "lbfgs_closure": (10, {"optimizer": 10, "backward": 40, "batch": 0}),
}


@pytest.mark.parametrize("name", [pytest.param(n, id=n) for n in COUNTED])
def test_real_steps_are_counted(quick, name):
    ran = quick(PROGRAMS / f"{name}.py")
    steps, counted = COUNTED[name]
    assert f"real steps: {steps}\n" in ran.out
    assert len(ran.steps) == ran.bye["steps"] == ran.bye["counts"]["step-end"] == steps
    assert ran.bye["counted"] == counted
    # Each step changed the weights, and the state of each was sampled.
    states = ran.states()
    assert [s["step"] for s in states][:steps] == list(range(steps))
    assert len(set(ran.column("weights"))) == len(states)
    assert all("gradients" in s["c"] for s in ran.steps)
    assert ran.troubles == []
    assert "Dynamo" not in ran.out  # it has nothing to say of our hooks


@pytest.mark.parametrize("name", ["by_hand", "duck_typed", "functional_adamw"])
def test_without_an_optimizer_backwards_are_counted(quick, name):
    seen = quick(PROGRAMS / f"{name}.py")
    assert len(seen.steps) == 0
    assert seen.bye["counted"] == {"optimizer": 0, "backward": 10, "batch": 0}
    ran = quick(PROGRAMS / f"{name}.py", step_by="backward")
    assert len(ran.steps) == 10
    assert len(set(ran.column("weights"))) == 10
    assert all("batch" in s["c"] for s in ran.steps)


def test_without_any_backward_batches_are_counted(quick):
    script = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)
    weights = torch.zeros(4)
    loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=4)
    for epoch in range(2):
        for (x,) in loader:
            weights += x.mean(0)
    """
    seen = quick(script)
    assert seen.bye["counted"] == {"optimizer": 0, "backward": 0, "batch": 12}
    ran = quick(script, step_by="batch")
    assert len(ran.steps) == 12


def test_programs_without_modules_have_their_tensors_found(quick):
    ran = quick(
        """
        import torch
        torch.manual_seed(0)
        w = torch.randn(4, 2, requires_grad=True)
        b = torch.zeros(2, requires_grad=True)
        for step in range(5):
            loss = (torch.randn(8, 4) @ w + b).square().mean()
            loss.backward()
            with torch.no_grad():
                for p in (w, b):
                    p -= 0.1 * p.grad
                    p.grad = None
        """,
        step_by="backward",
    )
    assert len(ran.steps) == 5
    assert ran.states()[0]["names"]["weights"] == 2
    assert len(set(ran.column("weights"))) == 5


def test_spawned_loader_workers_are_not_ranks(place):
    ran = place.run(PROGRAMS / "loader_workers.py")
    assert len(ran.steps) == 10
    # The model is a local variable, gone when the interpreter exits.
    assert ran.states("finish")[0]["c"]["weights"] != ran.column("weights")[-1]
    roles = sorted(p[0]["role"] for p in ran.processes)
    assert roles[0] == "helper"
    assert roles[-1] == "main"
    assert roles.count("main") == 1


@pytest.mark.parametrize(
    ("command", "program"),
    [
        pytest.param(["-m"], "package", id="module"),
        pytest.param([], "console_script", id="console-script"),
    ],
)
def test_steps_are_counted_however_the_program_is_started(place, command, program):
    for name in ("package", "console_script", "schedule.py"):
        if (PROGRAMS / name).exists():
            (place.work / name).symlink_to(PROGRAMS / name)
    ran = place.run(Path(program), command=[sys.executable, *command])
    assert "real steps: 10\n" in ran.out
    assert len(ran.steps) == 10
    assert ran.bye["counted"] == ONE_A_STEP


def test_a_command_with_a_pythonpath_of_its_own_is_not_observed(place):
    file = PROGRAMS / "own_pythonpath.py"
    own = f"PYTHONPATH={PROGRAMS / 'lib'}"
    ran = place.run(file, command=["env", own, sys.executable])
    assert "real steps: 10\n" in ran.out
    assert ran.processes == []


@pytest.mark.parametrize(
    ("command", "role"),
    [
        (["python", "train.py"], "main"),
        (["python", "-m", "torch.distributed.run", "train.py"], "helper"),
        (["python", "/usr/bin/torchrun", "train.py"], "helper"),
        (["python", "-c", "from multiprocessing.spawn import spawn_main"], "quiet"),
        (["python", "-c", "from multiprocessing.resource_tracker import x"], "helper"),
        (["python", "-m", "torch._inductor.compile_worker"], "helper"),
    ],
    ids=" ".join,
)
def test_helpers_are_told_by_their_command(command, role):
    assert role_of(command) == role


@pytest.mark.parametrize("command", [["-I"], ["-S"], ["-E"]], ids=str)
def test_isolated_interpreters_are_not_observed(place, command):
    ran = place.run("print('hello')", command=[sys.executable, *command])
    assert ran.out == "hello\n"
    assert ran.processes == []


def test_ranks_of_torchrun_say_which_they_are(place):
    script = place.write(
        """
        import os, torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP
        dist.init_process_group("gloo")
        torch.manual_seed(dist.get_rank())
        net = DDP(torch.nn.Linear(4, 2))
        opt = torch.optim.SGD(net.parameters(), 0.1)
        for step in range(3):
            net(torch.randn(8, 4)).sum().backward()
            opt.step()
            opt.zero_grad()
        del net
        dist.destroy_process_group()
        """
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    ran = place.run(script, command=[*launcher, "--standalone"])
    trained = [p for p in ran.processes if any(m["k"] == "step" for m in p)]
    assert sorted(p[0]["rank"] for p in trained) == [0, 1]
    assert {p[0]["world_size"] for p in trained} == {2}
    assert all(sum(m["k"] == "step" for m in p) == 3 for p in trained)
    others = [p for p in ran.processes if p not in trained]
    assert [p[0]["role"] for p in others] == ["helper"]
    # Names are those of the model within its wrapper: equal to those without one.
    first = [next(m for m in p if m["k"] == "state") for p in trained]
    assert len({m["c"]["weights"] for m in first}) == 1


def test_frameworks_that_step_through_a_closure_make_one_step_a_call(quick):
    ran = quick(
        """
        import torch
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 2)
        opt = torch.optim.Adam(net.parameters(), 1e-2)
        for step in range(10):
            x = torch.randn(8, 4)
            def closure():
                opt.zero_grad()
                loss = net(x).square().mean()
                loss.backward()
                return loss
            opt.step(closure)
        """
    )
    assert len(ran.steps) == 10
    assert ran.bye["counted"] == ONE_A_STEP
    assert all({"gradients", "batch", "loss"} <= {*s["c"]} for s in ran.steps)


def test_forked_workers_and_helpers_are_no_ranks(quick):
    ran = quick(
        """
        import os, torch
        from torch.utils.data import DataLoader
        if os.fork() == 0:
            torch.nn.Linear(2, 2)(torch.ones(1, 2))
            os._exit(0)
        os.wait()
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 2)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        for x in DataLoader(torch.randn(24, 4), batch_size=8, num_workers=2):
            net(x).sum().backward()
            opt.step()
        """
    )
    ranks = read_attempt(ran.trace).ranks
    assert [*ranks] == [0]
    assert len(ranks[0].steps) == 3


def test_an_optimizer_for_each_parameter_steps_inside_the_backward(quick):
    ran = quick(PROGRAMS / "optimizer_per_parameter.py")
    counts = ran.bye["counts"]
    # The site is reached once a round, not once for each of the four.
    assert counts["optimizer-step"] == counts["backward"] == counts["step-end"] == 10


# What facts.md 2 says of each case -> where it is held: a test, or a line of `COUNTED`.
HELD_BY = {
    "plain": "COUNTED plain",
    "foreach": "COUNTED foreach",
    "fused": "COUNTED fused",
    "compiled model": "COUNTED compiled_model",
    "compiled opt.step": "COUNTED compiled_step",
    "compiled function that steps": "COUNTED compiled_whole_step",
    "subclass overriding step": "COUNTED subclass_step",
    "per-optimizer hooks": "COUNTED own_hooks",
    "torchrun's children": "test_ranks_of_torchrun_say_which_they_are",
    "loader workers, spawned": "test_spawned_loader_workers_are_not_ranks",
    "loader workers, forked; helpers": "test_forked_workers_and_helpers_are_no_ranks",
    "compile workers": "test_helpers_are_told_by_their_command",
    "GradScaler skipping on inf": "COUNTED scaler_skips_inf",
    "two optimizers": "COUNTED two_optimizers",
    "an optimizer per parameter, in backward": (
        "test_an_optimizer_for_each_parameter_steps_inside_the_backward"
    ),
    "LBFGS with closure": "COUNTED lbfgs_closure",
    "frameworks that step through a closure": (
        "test_frameworks_that_step_through_a_closure_make_one_step_a_call"
    ),
    "super().step() while a base instance exists": "COUNTED subclass_super_step",
    "get/set_state_dict on a fresh optimizer": "COUNTED dcp_state_dict",
    "weights changed by hand, functional, duck-typed": (
        "test_without_an_optimizer_backwards_are_counted"
    ),
    "then DataLoader batches": "test_without_any_backward_batches_are_counted",
    "own PYTHONPATH": "test_a_command_with_a_pythonpath_of_its_own_is_not_observed",
    "python -I/-E/-S": "test_isolated_interpreters_are_not_observed",
    "batch norm's statistics": (
        "test_states.test_buffers_are_those_before_a_forward_that_trains_nothing"
    ),
    "averaged copies": "test_averages.test_averages_are_followed",
    "batches that the program draws itself": (
        "test_samples.test_without_ids_rows_are_told_apart_by_content"
    ),
    "the probe moves no RNG": (
        "test_harmless.test_a_run_with_the_probe_equals_one_without"
    ),
}


@pytest.mark.parametrize("case", HELD_BY)
def test_each_case_of_counting_has_its_test(case):
    place = HELD_BY[case]
    if place.startswith("COUNTED "):
        assert place.removeprefix("COUNTED ") in COUNTED
        return
    module, _, name = place.rpartition(".")
    file = Path(__file__).with_name(f"{module}.py") if module else Path(__file__)
    assert f"\ndef {name}(" in file.read_text()


def test_a_step_that_only_makes_the_state_to_load_into_is_none(quick):
    ran = quick(
        """
import torch
net = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
for p in net.parameters(): p.grad = torch.zeros_like(p)
opt.step()
opt.load_state_dict(opt.state_dict())
for _ in range(3):
    opt.zero_grad(); net(torch.randn(8, 4)).square().mean().backward(); opt.step()
for p in net.parameters(): p.grad.zero_()
opt.step()  # its momentum moves weights
"""
    )
    assert len(ran.steps) == ran.bye["steps"] == 4
    assert ran.troubles == []


def test_gradients_that_a_program_makes_itself_make_steps(quick):
    ran = quick(
        """
import torch
net = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    for p in net.parameters(): p.grad = torch.randn_like(p)
    opt.step()
"""
    )
    assert len(ran.steps) == 3
