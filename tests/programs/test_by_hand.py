"""The verdicts of EXPECTED.toml are true: found with a stopped process and bits alone.

Nothing of the tool takes part, so that a verdict on which both agree is worth something.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import psutil
import pytest
import torch

FOLDER = Path(__file__).parents[2] / "scenarios" / "programs"
HALTING = Path(__file__).parent / "halting"
EXPECTED = tomllib.loads((FOLDER / "EXPECTED.toml").read_text())
PROGRAMS, STEPS = EXPECTED["programs"], EXPECTED["steps"]
LIMIT_S = 300
NEEDS = ("accelerate", "lightning", "transformers")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * LIMIT_S)]


def environment(watch=None, after=0):
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    env |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
    if watch is not None:
        env |= {
            "PYTHONPATH": str(HALTING),
            "HALT_FOLDER": str(watch),
            "HALT_AFTER": str(after),
        }
    return env


def run(command, folder, env):
    done = subprocess.run(
        command,
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def run_until_killed(entry, folder, watch):
    """Run until every rank stands still after its step, then kill every process."""
    after = int(entry["kill-at"].partition(":")[2])
    program = subprocess.Popen(
        entry["command"],
        cwd=folder,
        env=environment(watch, after),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wanted = [watch / f"halted-{rank}" for rank in range(entry["ranks"])]
    pause = threading.Event()
    try:
        for _ in range(LIMIT_S * 20):
            if program.poll() is not None or all(path.exists() for path in wanted):
                break
            pause.wait(0.05)
        assert program.poll() is None, "it ended before its kill point"
        assert all(path.exists() for path in wanted), "it never reached its kill point"
    finally:
        end(program.pid)
        program.wait()


def end(pid):
    """Kill a process and all it started."""
    try:
        family = psutil.Process(pid)
        # torchrun's workers have sessions of their own: a process group is not enough.
        members = [*family.children(recursive=True), family]
    except psutil.NoSuchProcess:
        return
    for member in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()


def tensors(found, name="final"):
    """Every tensor of what was saved, flat, by its path."""
    if isinstance(found, torch.Tensor):
        return {name: found}
    return {
        path: tensor
        for key, value in found.items()
        for path, tensor in tensors(value, f"{name}.{key}").items()
    }


def final(folder):
    (path,) = folder.rglob("final.pt")
    return tensors(torch.load(path))


def are_equal_bit_for_bit(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(
            one[k].view(-1).view(torch.uint8), other[k].view(-1).view(torch.uint8)
        )
        for k in one
    )


@pytest.fixture
def place(tmp_path):
    def make(name):
        target = tmp_path / name
        shutil.copytree(FOLDER, target)
        return target

    return make


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_resumed_after_a_kill_ends_as_its_verdict_says(name, place, tmp_path):
    entry = PROGRAMS[name]
    if entry["framework"] in NEEDS:
        pytest.importorskip(entry["framework"])
    first, second, killed = place("first"), place("second"), place("killed")
    watch = tmp_path / "watch"
    watch.mkdir()

    run(entry["command"], first, environment())
    run(entry["command"], second, environment())
    run_until_killed(entry, killed, watch)
    run(entry["command"], killed, environment())

    assert are_equal_bit_for_bit(final(first), final(second))
    as_if_nothing_happened = are_equal_bit_for_bit(final(first), final(killed))
    assert as_if_nothing_happened == (entry["verdict"] == "held")


@pytest.mark.parametrize("name", STEPS)
def test_a_program_takes_its_real_steps_and_the_hook_fires_as_stated(
    name, place, tmp_path
):
    entry = STEPS[name]
    watch = tmp_path / "watch"
    watch.mkdir()

    printed = run(entry["command"], place("here") / "steps", environment(watch))

    assert f"real steps: {entry['real-steps']}" in printed.splitlines()
    fired = [int(path.read_text()) for path in watch.glob("fired-*")]
    assert sum(fired) == entry["hook-fires"]
