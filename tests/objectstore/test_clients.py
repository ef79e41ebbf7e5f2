"""Clients that are not boto3 find our S3, and meet its faults as they would the store's."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PROGRAM = Path(__file__).with_name("other_clients.py")
CLIENTS = ("aws", "s5cmd", "s3torchconnector")


def is_installed(client):
    if client == "s3torchconnector":
        return importlib.util.find_spec(client) is not None
    return shutil.which(client) is not None


@pytest.fixture
def saved(request):
    """Return a function that saves with a client where there is no network at all."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    allowed = ["unshare", "-r", "-n", "true"]
    if subprocess.run(allowed, capture_output=True, check=False).returncode:
        pytest.skip("network namespaces are not allowed here")

    def saved(client, *faults):
        if not is_installed(client):
            pytest.skip(f"{client} is not installed")
        code = (
            "import os, sys; from spotchaos.launch.isolation.namespaces import bring_up_loopback;"
            " bring_up_loopback([]); os.execv(sys.executable, [sys.executable,"
            " *sys.argv[1:]])"
        )
        done = subprocess.run(
            [
                "unshare",
                "-r",
                "-n",
                sys.executable,
                "-c",
                code,
                str(PROGRAM),
                client,
                *faults,
            ],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return saved


@pytest.mark.parametrize("client", CLIENTS)
def test_bytes_come_back_as_they_went(saved, client):
    found = saved(client)
    assert found["statuses"] == [0, 0, 0]
    assert found["is_same"]
    assert found["is_listed"]
    assert "CompleteMultipartUpload" in found["operations"]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    "fault",
    ["s3-503:2", "s3-cut:2", "s3-truncated-get", "s3-lost-complete", "s3-error-body"],
)
def test_what_passes_is_tried_again(saved, client, fault):
    found = saved(client, fault)
    assert found["struck"] == [fault.partition(":")[0]]
    assert found["statuses"] == [0, 0, 0]
    assert found["is_same"]


@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_forbidden_fails_and_leaves_nothing(saved, client):
    found = saved(client, "s3-403:2")
    assert found["struck"] == ["s3-403"]
    assert found["statuses"][0] != 0
    assert not found["is_there"]
