"""Verdicts where containers, hosted CI and sandboxes refuse what isolates an attempt."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from spotchaos.launch.isolation.remedies import Place, remedies
from tests.safety.conftest import ROOT
from tests.safety.imitations import PLACES

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux", reason="x86-64 numbers"
)

# files, processes, network, whether file operations are seen: as `docs/explanation/safety.md`
# has it.
TABLE = {
    "docker-root": (None, False, False, False),
    "docker-user": (None, False, False, False),
    "kubernetes": (None, False, False, False),
    "github": (None, False, False, True),
    "gvisor": (None, False, True, False),
    "podman": ("user", False, True, True),
    "wsl": ("user", True, True, True),
}
# Flaws and twins, of a state, of order, of a signal, of a save, of a choice of checkpoint.
SPECIMENS = [
    "never_resumes",
    "silent_restart",
    "lost_work",
    "weights_not_restored",
    "optimizer_not_restored",
    "rng_not_restored",
    "samples_repeated",
    "signal_ignored",
    "stale_resume",
    "torn_checkpoint",
]
# What strace shows, it shows without the line of the program.
WITHOUT_LINES = ("expected the line with",)

ASK = """
import dataclasses, json
from spotchaos.launch.isolation.mechanisms import find_mechanisms
from spotchaos.launch.supervisor.supervisor import supervisor_available
found = find_mechanisms()
print(json.dumps([found.overlay, found.pid_namespace, found.network_namespace,
                  supervisor_available()[0]]))
"""


@pytest.fixture
def imitate(interpreter):
    """Return a function that runs our Python, with arguments, as in a place."""
    python, variables = interpreter

    def run(name, *arguments, bound_s=100):
        folder = Path(f"/var/tmp/safety-{name}-{os.getpid()}")
        folder.mkdir()
        folder.chmod(0o1777)
        try:
            return subprocess.run(
                [
                    python,
                    f"{ROOT}/tests/safety/imitations.py",
                    name,
                    python,
                    *arguments,
                ],
                env={**variables, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"},
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=bound_s,
            )
        finally:
            subprocess.run(["rm", "-rf", str(folder)], check=True)

    return run


def test_the_table_has_every_place():
    assert set(TABLE) == set(PLACES)


@pytest.mark.parametrize("name", PLACES)
def test_what_works_in_a_place_is_what_the_table_says(name, imitate):
    done = imitate(name, "-c", ASK)
    assert done.returncode == 0, done.stderr
    assert tuple(json.loads(done.stdout)) == TABLE[name]


@pytest.mark.parametrize("name", ["kubernetes", "gvisor", "podman"])
def test_a_gate_refuses_to_run_unprotected(name, imitate):
    command = ["-m", "spotchaos", "run", "--require-isolation", "--", "true"]
    done = imitate(name, *command)
    assert done.returncode == 2, done.stderr
    assert "--require-isolation: this machine cannot isolate" in done.stderr
    assert done.stdout == ""


def test_a_gate_runs_where_everything_is_isolated(imitate):
    command = ["-m", "spotchaos", "run", "--require-isolation", "--", "true"]
    done = imitate("wsl", *command)
    assert "--require-isolation" not in done.stderr
    assert "not-observed" in done.stdout  # `true` trains nothing


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", PLACES)
def test_verdicts_are_right_under_weaker_protection(name, imitate):
    done = imitate(
        name, "-m", "spotchaos", "specimens", "--run", *SPECIMENS, bound_s=3500
    )
    rows = [r for r in done.stdout.splitlines() if r.startswith(("right", "WRONG"))]
    assert len(rows) == 2 * len(SPECIMENS), done.stdout + done.stderr
    wrong = [r.split()[1] for r in rows if r.startswith("WRONG")]
    seen = TABLE[name][3]
    assert wrong == ([] if seen else ["mutants/torn_checkpoint"]), done.stdout
    complaints = [r.strip() for r in done.stdout.splitlines() if r.startswith("   ")][
        1:
    ]
    assert all(c.startswith(WITHOUT_LINES) for c in complaints), complaints


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (Place(apparmor_restricts=True), "apparmor_restrict_unprivileged_userns=0"),
        (Place(cloning_off=True), "kernel.unprivileged_userns_clone=1"),
        (Place(none_allowed=True), "user.max_user_namespaces"),
        (Place(is_container=True), "--security-opt seccomp=unconfined"),
        (Place(is_pod=True, is_filtered=True), "securityContext.seccompProfile"),
        (Place(is_gvisor=True), "runc"),
        (Place(), "run as root"),
    ],
)
def test_what_would_help_is_named(place, said):
    assert any(said in text for text in remedies(place))
