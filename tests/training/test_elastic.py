"""Under torchrun ranks join and leave, training goes on, and the bits stay."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from spotchaos.clock import SystemClock
from spotchaos.errors import CheckpointError
from spotchaos.training.checkpoint import CheckpointStore
from spotchaos.training.plain import first_difference

pytestmark = [pytest.mark.slow, pytest.mark.ddp, pytest.mark.timeout(400)]
CLOCK = SystemClock()
LIMIT_S = 150
STEPS = 300
PROGRAM = [
    "--steps", str(STEPS), "--save-every", "20", "--virtual-workers", "2",
    "--accumulate", "1", "--batch", "2", "--samples", "64", "--watch", "none",
]  # fmt: skip


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def c10d():
    return ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]


@pytest.fixture
def etcd(tmp_path):
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed (Debian: etcd-server)")
    pytest.importorskip("etcd", reason="python-etcd is not installed")
    client, peer = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    server = subprocess.Popen(
        [
            "etcd", "--enable-v2=true", "--data-dir", str(tmp_path / "etcd"),
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}", "--log-level", "error",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        end = CLOCK.monotonic() + 30
        while CLOCK.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", int(client.rpartition(":")[2]))) == 0:
                    break
            CLOCK.sleep(0.05)
        yield [
            "--rdzv-backend",
            "etcd-v2",
            "--rdzv-endpoint",
            client.removeprefix("http://"),
        ]
    finally:
        server.kill()
        server.wait()


class Agent:
    """One torchrun agent, as on a machine of its own; its ranks are in its tree."""

    def __init__(self, out, rendezvous, log):
        self.log = Path(log)
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2",
            "--nproc-per-node", "1", "--max-restarts", "9", "--rdzv-id", "elastic",
            "--monitor-interval", "0.2", *rendezvous,
            "--rdzv-conf", "last_call_timeout=1",
            "-m", "spotchaos.training", "--out", str(out), *PROGRAM,
        ]  # fmt: skip
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            # With a shared store the first agent of torch 2.13 tells an agent that joins
            # in a later round no address, and both give up after a minute.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        with self.log.open("w") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=environment,
                start_new_session=True,
            )  # fmt: skip

    def ranks(self):
        return psutil.Process(self.process.pid).children()

    def has_called(self, port):
        """Whether the agent itself talks to the rendezvous, and so will join."""
        connections = psutil.Process(self.process.pid).net_connections(kind="tcp")
        return any(each.raddr and each.raddr.port == port for each in connections)

    def lose(self):
        """Take the machine away: the agent and all that it started, at once."""
        tree = [psutil.Process(self.process.pid)]
        tree += tree[0].children(recursive=True)
        for process in tree:
            process.send_signal(signal.SIGSTOP)
        for process in tree:
            process.kill()
        self.process.wait()

    def end(self):
        if self.process.poll() is None:
            self.lose()


def newest(out):
    try:
        checkpoint = CheckpointStore(out).newest()
    except (OSError, CheckpointError):  # it is being removed at this very moment
        return 0
    return 0 if checkpoint is None else checkpoint.step


def wait_until(what, agents):
    end = CLOCK.monotonic() + LIMIT_S
    while not what():
        if CLOCK.monotonic() > end:
            logs = "\n".join(agent.log.read_text()[-3000:] for agent in agents)
            pytest.fail(f"waited too long; the agents say:\n{logs}")
        CLOCK.sleep(0.1)


def resumptions(agents):
    texts = [agent.log.read_text() for agent in agents]
    return sum(len(re.findall(r"resuming after step", text)) for text in texts)


@pytest.mark.parametrize("backend", ["c10d", "etcd"])
def test_ranks_join_and_leave_and_the_bits_stay(request, tmp_path, backend):
    rendezvous = request.getfixturevalue(backend)
    out = tmp_path / "elastic"
    agents = [Agent(out, rendezvous, tmp_path / "one.log")]
    try:
        wait_until(lambda: newest(out) >= 20, agents)
        # Hold the first still while the second starts, or it would be done by then.
        held = agents[0].ranks()
        for rank in held:
            rank.suspend()
        agents.append(Agent(out, rendezvous, tmp_path / "two.log"))
        port = int(rendezvous[-1].rpartition(":")[2])
        wait_until(lambda: agents[1].has_called(port), agents)
        for rank in held:
            rank.resume()
        wait_until(lambda: resumptions(agents) >= 1, agents)  # both, from a checkpoint
        joined_at = newest(out)
        wait_until(lambda: newest(out) >= joined_at + 20, agents)
        agents[1].lose()
        wait_until(lambda: agents[0].process.poll() is not None, agents)
        assert agents[0].process.returncode == 0, agents[0].log.read_text()[-3000:]
    finally:
        for agent in agents:
            agent.end()
    assert joined_at < STEPS - 40
    assert resumptions(agents) >= 2
    quiet = [sys.executable, "-m", "spotchaos.training", "--ranks", "1", *PROGRAM]
    subprocess.run(
        [*quiet, "--out", str(tmp_path / "quiet")],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    states = [
        CheckpointStore(folder).load_latest() for folder in (tmp_path / "quiet", out)
    ]
    assert states[0]["step"] == STEPS
    assert first_difference(*states, "state") is None
