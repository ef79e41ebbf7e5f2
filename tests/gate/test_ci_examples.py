"""Each piece of shell that a CI system is given, run as it stands."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "ci"


def text_of(name):
    return (EXAMPLES / name).read_text()


def asked(shell):
    return json.loads(shell.asked.read_text())


@pytest.fixture
def action():
    return yaml.safe_load((ROOT / "action.yml").read_text())


@pytest.fixture
def gate(shell, action):
    """Run the action's own step with inputs, as a runner does."""
    step = next(s for s in action["runs"]["steps"] if s.get("id") == "gate")
    defaults = {name: entry["default"] for name, entry in action["inputs"].items()}

    def run(stand_in="held", **inputs):
        given = {**defaults, **{k.replace("_", "-"): v for k, v in inputs.items()}}
        environment = {
            name: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda m: given[m[1]], value)
            for name, value in step["env"].items()
        }
        files = {
            name: str(shell.folder / name.lower())
            for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")
        }
        return shell.run(step["run"], STAND_IN=stand_in, **environment, **files)

    return run


def test_the_action_hands_every_input_to_its_step(action):
    step = next(s for s in action["runs"]["steps"] if s.get("id") == "gate")
    used = set(re.findall(r"inputs\.([a-z-]+)", " ".join(step["env"].values())))
    used |= set(re.findall(r"inputs\.([a-z-]+)", step["working-directory"]))
    assert used == set(action["inputs"])
    assert all(s.get("shell") == "bash" for s in action["runs"]["steps"] if "run" in s)


def test_the_action_is_green_when_the_promise_holds(gate, shell):
    done = gate(command="python train.py")
    assert done.returncode == 0, done.stderr
    folder = shell.folder / "spotchaos-report"
    assert {p.name for p in folder.iterdir()} == {
        f"report.{kind}" for kind in ("json", "html", "xml", "sarif")
    }
    assert "spotchaos: held" in (shell.folder / "github_step_summary").read_text()
    assert str(folder) in (shell.folder / "github_output").read_text()


def test_the_action_is_red_when_it_does_not(gate):
    done = gate("violated", command="python train.py")
    assert done.returncode == 1
    assert "::error title=spotchaos%3A rng-not-restored,file=train.py,line=40" in (
        done.stdout
    )


def test_the_action_is_red_when_nothing_was_proved(gate):
    assert gate("unknown", command="python train.py").returncode == 3


def test_the_actions_inputs_reach_the_campaign(gate, shell):
    done = gate(
        command="python train.py --name 'a b'",
        promise="state",
        fail_on="hang,diverged",
        budget="90",
        shard="2/3",
        options="--signal TERM --grace 5",
    )
    assert done.returncode == 0, done.stderr
    assert asked(shell) == {
        "command": str(("python", "train.py", "--name", "a b")),
        "promise": "state",
        "fail_on": str(("hang", "diverged")),
        "budget_s": "90.0",
        "shard": "(2, 3)",
        "signal": "TERM",
        "grace_s": "5.0",
    }


def test_the_action_carries_out_scenarios_when_it_is_given_some(gate, shell):
    folder = shell.folder / "scenarios"
    folder.mkdir()
    (folder / "test_one.py").write_text("def test_nothing_is_wrong(): pass\n")
    done = gate(scenarios="scenarios")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    assert (shell.folder / "spotchaos-report" / "report.xml").exists()


def test_the_workflow_merges_what_its_shards_wrote(shell, gate):
    workflow = yaml.safe_load(text_of("github.yml"))
    shards = workflow["jobs"]["interrupt"]["strategy"]["matrix"]["shard"]
    assert shards == [f"{n}/{len(shards)}" for n in range(1, len(shards) + 1)]
    for number, part in enumerate(shards):
        gate(
            "violated",
            command="python train.py",
            shard=part,
            report=f"reports/spotchaos-report-{number}",
        )
    merge = next(
        s for s in workflow["jobs"]["verdict"]["steps"] if s.get("name") == "Merge"
    )
    done = shell.run(merge["run"])
    assert done.returncode == 1, done.stderr
    assert "VIOLATED" in done.stdout
    merged = json.loads((shell.folder / "report.json").read_text())
    assert [t["number"] for t in merged["trials"]] == [1, 2, 3, 4]


def test_the_workflow_gives_the_action_only_inputs_that_it_has(action):
    steps = yaml.safe_load(text_of("github.yml"))["jobs"]["interrupt"]["steps"]
    step = next(s for s in steps if s.get("uses", "").startswith("OWNER/spotchaos"))
    assert set(step["with"]) <= set(action["inputs"])


def test_the_jobs_of_gitlab_share_the_plans_and_one_decides(shell):
    jobs = yaml.safe_load(text_of("gitlab-ci.yml"))
    count = jobs["interrupt"]["parallel"]
    for number in range(1, count + 1):
        for line in jobs["interrupt"]["script"]:
            done = shell.run(
                line,
                STAND_IN="violated",
                CI_NODE_INDEX=str(number),
                CI_NODE_TOTAL=str(count),
            )
            assert done.returncode in jobs["interrupt"]["allow_failure"]["exit_codes"]
        assert asked(shell)["shard"] == f"({number}, {count})"
    for line in jobs["verdict"]["script"]:
        assert shell.run(line).returncode == 1
    assert (shell.folder / "report.html").exists()


def test_the_stage_of_jenkins_writes_what_it_keeps(shell):
    (trial_context,) = re.findall(
        r"sh '''([^']*spotchaos run[^']*)'''", text_of("Jenkinsfile")
    )
    done = shell.run(trial_context, shell=("sh", "-xe"))
    assert done.returncode == 0, done.stderr
    kept = {p.name for p in (shell.folder / "reports").iterdir()}
    assert kept == {"report.json", "report.html", "report.xml"}
    assert (
        shell.run(trial_context, shell=("sh", "-xe"), STAND_IN="violated").returncode
        == 1
    )


def test_the_gate_of_slurm_uses_the_sites_own_signal(shell):
    done = shell.run(text_of("gate.sbatch"), SIGNAL="USR2", GRACE="60")
    assert done.returncode == 0, done.stderr
    assert (asked(shell)["signal"], asked(shell)["grace_s"]) == ("USR2", "60.0")
    site = re.search(r"--signal=B:(\w+)@(\d+)", text_of("train.sbatch"))
    assert f'"${{SIGNAL:={site[1]}}}" "${{GRACE:={site[2]}}}"'.replace('"', "") in (
        text_of("gate.sbatch").replace('"', "")
    )


# Trains until it is told; then saves in two steps, and leaves a witness.
TRAINING = """
import pathlib, signal, sys, threading
told = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: told.set())
print("training", flush=True)
told.wait(60)
pathlib.Path("saved").write_text("whole")
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def batch(shell):
    """Start the batch script as Slurm does, on a program that waits for the signal."""
    (shell.folder / "training.py").write_text(TRAINING)
    shell.program("scontrol", '#!/bin/sh\necho "$@" > "$ASKED"\n')
    started = []

    def start(status):
        process = subprocess.Popen(
            ["bash", str(EXAMPLES / "train.sbatch")],
            cwd=shell.folder,
            env=shell.environment(
                TRAIN=f"python training.py {status}", SLURM_JOB_ID="41"
            ),
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "training\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_batch_script_passes_the_signal_on_and_queues_itself_again(batch, shell):
    job = batch(3)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(timeout=60) == 0
    assert (shell.folder / "saved").read_text() == "whole"
    assert shell.asked.read_text() == "requeue 41\n"


def test_the_batch_script_ends_as_the_program_does(shell):
    shell.program("scontrol", '#!/bin/sh\necho "$@" > "$ASKED"\n')
    done = shell.run(
        text_of("train.sbatch"), TRAIN="sh -c 'exit_is_7'", SLURM_JOB_ID="1"
    )
    assert done.returncode == 127
    assert not shell.asked.exists()


def test_the_job_of_kubernetes_is_the_gate(shell):
    job, _ = yaml.safe_load_all(text_of("kubernetes.yaml"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (line,) = container["args"]
    done = shell.run(line, shell=("bash",), REPORT=str(shell.folder), GRACE="12")
    assert done.returncode == 0, done.stderr
    assert (asked(shell)["signal"], asked(shell)["grace_s"]) == ("TERM", "12.0")


WATCHING = """
import os, pathlib, threading
print("training", flush=True)
stop = pathlib.Path(os.environ["SPOT"], "stop")
tick = threading.Event()
while not stop.exists():
    tick.wait(0.02)
pathlib.Path("saved").write_text("whole")
"""


def test_what_kubernetes_runs_first_waits_until_the_program_has_saved(shell):
    _, pod = yaml.safe_load_all(text_of("kubernetes.yaml"))
    (container,) = pod["spec"]["containers"]
    (shell.folder / "train.py").write_text(WATCHING)
    environment = shell.environment(SPOT=str(shell.folder / "spot"))
    with subprocess.Popen(
        [*container["command"], *container["args"]],
        cwd=shell.folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            assert program.stdout.readline() == "training\n"
            before = container["lifecycle"]["preStop"]["exec"]["command"]
            # Of a real Pod the container reaps its process; here the test has to.
            hook = subprocess.Popen(before, cwd=shell.folder, env=environment)
            assert program.wait(timeout=60) == 0
            assert hook.wait(timeout=60) == 0
            assert (shell.folder / "saved").exists()
        finally:
            program.kill()


def test_a_pod_gets_a_grace_window_and_is_told_within_it():
    _, pod = yaml.safe_load_all(text_of("kubernetes.yaml"))
    assert pod["spec"]["terminationGracePeriodSeconds"] >= 30


@pytest.mark.parametrize("name", sorted(os.listdir(EXAMPLES)))
def test_no_example_names_a_place_that_only_we_have(name):
    text = text_of(name)
    assert str(ROOT) not in text
    assert "/tmp/" not in text
