"""Places and users that a test of safety prepares; the machine's own are never touched."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOBODY = 65534
BOUND_S = 120.0


@pytest.fixture(scope="session")
def interpreter():
    """Return a Python that another user may read, and the variables that it needs."""
    if os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("unshare"):
        pytest.skip("only root can prepare mounts and become somebody else")
    import msgspec

    packages = str(Path(msgspec.__file__).parents[1])
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT}:{packages}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/nonexistent",
    }
    check = (
        "import subprocess, sys, msgspec, spotchaos.launch;"
        "assert sys.version_info >= (3, 11);"
        "subprocess.run([sys.executable, '-c', ''], check=True)"
    )
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        done = subprocess.run(
            as_user(NOBODY, path, "-c", check),
            env=variables,
            cwd="/",
            capture_output=True,
            check=False,
        )
        if done.returncode == 0:
            return path, variables
    pytest.skip("no Python 3.11 with our packages that another user may read")


def as_user(user, *command):
    ids = ["--reuid", str(user), "--regid", str(user), "--clear-groups"]
    return ["setpriv", *ids, *command]
