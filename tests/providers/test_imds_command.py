"""`spotchaos imds`: its address alone on the first line, then a line for each request."""

import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest
import requests
from click.testing import CliRunner

from spotchaos.cli.imds import command
from spotchaos.errors import UsageError

ACTION = "/latest/meta-data/spot/instance-action"
STAMP = r"\d\d:\d\d:\d\d\.\d{6}"


@contextmanager
def serving(*arguments, ends_with=signal.SIGTERM):
    """Run the command; yield its address and a function that returns its next line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "spotchaos", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        base_url = process.stdout.readline().strip()
        yield base_url, lambda: process.stdout.readline().rstrip("\n")
        process.send_signal(ends_with)
        rest, errors = process.communicate(timeout=20)
        assert (process.returncode, rest, errors) == (0, "", "")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_interrupted(number):
    with serving("imds", "--provider", "aws", ends_with=number) as (url, line):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        assert requests.get(url + ACTION, timeout=5).status_code == 404
        assert re.fullmatch(f"{STAMP} GET {ACTION} 404", line())
        requests.get(url + "/latest/meta-data/spt", timeout=5)
        assert line().endswith("404  (unknown path)")


def test_options_set_the_story():
    arguments = ("--provider", "aws", "--action", "stop", "--after", "0s")
    more = ("--require-token", "--time-scale", "60", "--port", str(free_port()))
    with serving("imds", *arguments, *more) as (url, line):
        assert url.endswith(more[-1])
        assert requests.get(url + ACTION, timeout=5).status_code == 401
        assert "no token" in line()
        token = requests.put(
            url + "/latest/api/token",
            headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"},
            timeout=5,
        ).text
        assert line().endswith("PUT /latest/api/token 200")
        headers = {"X-aws-ec2-metadata-token": token}
        answer = requests.get(url + ACTION, headers=headers, timeout=5)
        assert answer.json()["action"] == "stop"
        assert line().endswith("200")


def test_a_notice_is_withdrawn_when_told():
    arguments = ("--provider", "azure", "--after", "0", "--withdraw-after", "0.5")
    with serving("imds", *arguments, "--time-scale", "100") as (url, line):
        path = "/metadata/scheduledevents?api-version=2020-07-01"
        events = None
        for _ in range(200):
            answer = requests.get(url + path, headers={"Metadata": "true"}, timeout=5)
            events = answer.json()["Events"]
            line()
            if not events:
                break
        assert events == []
        assert answer.json()["DocumentIncarnation"] > 1


@pytest.mark.parametrize("is_file", [False, True])
def test_a_script_is_played_and_said_as_it_comes(tmp_path, is_file):
    phases = ["0s aws-rebalance", "0s 503:1", "1s aws", "3s withdraw"]
    arguments = ["--provider", "aws", "--time-scale", "10"]
    if is_file:
        path = tmp_path / "phases.toml"
        path.write_text(f'provider = "aws"\ntime-scale = 10\nphases = {phases}\n')
        arguments = ["--scenario", str(path)]
    else:
        arguments += [word for phase in phases for word in ("--phase", phase)]
    with serving("imds", *arguments) as (url, line):
        for phase in phases:
            assert re.fullmatch(f"{STAMP} phase {phase}", line())
        assert requests.get(url + ACTION, timeout=5).status_code == 503
        assert requests.get(url + ACTION, timeout=5).status_code == 404
        assert line().endswith("503  (fault 503)")
        assert line().endswith("404")


def test_it_takes_orders_while_it_runs():
    with serving("imds", "--provider", "gcp-early") as (url, line):
        path = "/computeMetadata/v1/instance/preempted"
        flavor = {"Metadata-Flavor": "Google"}
        assert requests.get(url + path, headers=flavor, timeout=5).text == "FALSE"
        told = requests.post(url + "/_spotchaos/announce?after=0s", timeout=5).json()
        assert told["reclaim_at"] < told["deadline"]
        assert requests.get(url + path, headers=flavor, timeout=5).text == "TRUE"
        log = requests.get(url + "/_spotchaos/log", timeout=5).json()
        assert [entry["path"] for entry in log] == [path, path]
        assert line()
        assert line()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param(
            ["--provider", "awz"],
            "unknown provider or notice 'awz'\nHint: did you mean 'aws'?",
            id="near-miss",
        ),
        pytest.param(
            ["--provider", "azure", "--action", "stop"],
            "--action stop does not fit 'azure'\n"
            "Hint: only aws names an action in its notice",
            id="no-such-action",
        ),
        pytest.param(
            ["--provider", "aws", "--grace", "-3"],
            "impossible grace window of -3.0 s\n"
            "Hint: give a number of seconds, 0 or more",
            id="impossible-grace",
        ),
        pytest.param(
            ["--provider", "aws", "--withdraw-after", "-1"],
            "impossible withdrawal of -1.0 s\n"
            "Hint: give a number of seconds, 0 or more",
            id="impossible-withdrawal",
        ),
        pytest.param(
            ["--provider", "aws", "--after", "nan"],
            "impossible delay of nan s\nHint: give a number of seconds, 0 or more",
            id="impossible-delay",
        ),
        pytest.param(
            ["--provider", "aws", "--time-scale", "0"],
            "impossible time scale 0.0\n"
            "Hint: give cloud seconds per real second, such as 60",
            id="impossible-scale",
        ),
        pytest.param(
            ["--provider", "aws", "--after", "soon"],
            "'soon' is no number of seconds\nHint: write 10, 10s or 2min",
            id="no-seconds",
        ),
        pytest.param(
            ["--provider", "aws", "--port", "99999"],
            "there is no port 99999\nHint: ports are 0 to 65535",
            id="no-such-port",
        ),
    ],
)
def test_bad_input_is_a_clear_sentence(arguments, sentence):
    found = CliRunner().invoke(command, arguments)
    assert isinstance(found.exception, UsageError)
    assert str(found.exception) == sentence


def test_a_provider_without_metadata_says_which_have_one():
    found = CliRunner().invoke(command, ["--provider", "nebius"])
    assert "no metadata service to imitate" in str(found.exception)
    assert "choose of aws" in str(found.exception)
