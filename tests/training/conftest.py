"""Ranks that fork from the test process: torch is imported once, a run takes 0.1 s."""

import gc
import http.server
import os
import pickle
import signal
import socket
import sys
import threading
import traceback

import pytest
import torch
import torch._dynamo  # building an optimizer imports it: once here, not once per rank
from hypothesis import HealthCheck, settings
from torch import nn
from torch.utils.data import TensorDataset

from spotchaos.clock import SystemClock
from spotchaos.training.checkpoint import CheckpointStore
from spotchaos.training.keeper import Keeper
from spotchaos.training.peers import join
from spotchaos.training.trainer import Schedule, Trainer
from spotchaos.training.watch import InterruptionWatch

# A fork after a parallel region hangs, and two threads add in another order than one.
torch.set_num_threads(1)

settings.register_profile(
    "training", deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
settings.load_profile("training")

LIMIT_S = 60
CLOCK = SystemClock()


class Forked:
    """One rank in a process of its own."""

    def __init__(self, pid, pipe):
        self.pid = pid
        self._pipe = pipe
        self.code = None
        self.result = None

    def poll(self):
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                with os.fdopen(self._pipe, "rb") as pipe:
                    data = pipe.read()
                self.result = pickle.loads(data) if data else None
        return self.code

    def kill(self, number=signal.SIGKILL):
        if self.poll() is None:
            os.kill(self.pid, number)


def fork(work, *args, environment=None):
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Forked(pid, reading)
    status = 1
    try:
        gc.freeze()  # what was inherited is never searched, and so never copied
        os.close(reading)
        os.environ.update(environment or {})
        result = work(*args)
        # A small answer: it fits the pipe, so nobody must read while this one lives.
        os.write(writing, pickle.dumps(result))
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        sys.stdout.flush()
        os._exit(status)


def fork_ranks(world_size, work, *args):
    """Start `work(*args)` on each rank, with the environment of torchrun."""
    with socket.create_server(("127.0.0.1", 0), backlog=8) as meeting:
        os.set_inheritable(meeting.fileno(), True)
        ranks = []
        for rank in range(world_size):
            environment = {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meeting.getsockname()[1]),
                "SPOTCHAOS_RENDEZVOUS_FD": str(meeting.fileno()),
                "GLOO_SOCKET_IFNAME": "lo",
            }  # fmt: skip
            ranks.append(fork(work, *args, environment=environment))
        return ranks


def wait_for(ranks, limit_s=LIMIT_S):
    """Return the exit codes; kill what does not end, and fail."""
    end = CLOCK.monotonic() + limit_s
    while any(rank.poll() is None for rank in ranks):
        if CLOCK.monotonic() > end:
            for rank in ranks:
                rank.kill()
            pytest.fail(f"ranks did not end within {limit_s} s")
        CLOCK.sleep(0.002)
    return [rank.code for rank in ranks]


class ToyModel(nn.Module):
    """Dropout draws, batch norm has buffers, and every parameter takes part."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        return self.last(nn.functional.dropout(x, 0.2, self.training))


def toy_data(samples=60):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(samples, 6, generator=generator)
    y = torch.randint(0, 3, (samples,), generator=generator)
    return TensorDataset(x, y)


def toy_loss(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def train_toy(out, *, kill_at=None, signal_at=None, keeper=None, data=None, **options):
    """Train the toy on this rank; die by SIGKILL right after step `kill_at`.

    `signal_at` sends this rank SIGTERM before that step's end. Returns whether the run
    is finished.
    """
    extra = {
        name: options.pop(name)
        for name in (
            "virtual_workers",
            "allow_inexact",
            "held_out",
            "loss_of",
            "on_step",
        )
        if name in options
    }
    hooks = list(extra.pop("on_step", ()))

    def interrupt(step, loss):
        if step == signal_at:
            os.kill(os.getpid(), signal.SIGTERM)
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with InterruptionWatch() as watch:
        peers = join(timeout_s=20, device=torch.device("cpu"))
        torch.manual_seed(0)
        trainer = Trainer(
            model=ToyModel(),
            data=toy_data() if data is None else data,
            loss_of=extra.pop("loss_of", toy_loss),
            keeper=keeper
            or Keeper(CheckpointStore(out, run_id="toy"), in_background=False),
            peers=peers,
            schedule=Schedule(**{"batch": 2, "warm_up": 2, "rate": 1e-2, **options}),
            watch=watch,
            on_step=[interrupt, *hooks],
            **extra,
        )
        finished = trainer.run()
        trainer.close()
    return finished


def run_toy(out, *, ranks=1, **options):
    """Train the toy on forked ranks to whatever end; return exit codes and answers."""
    started = fork_ranks(ranks, lambda: train_toy(out, **options))
    codes = wait_for(started)
    return codes, [rank.result for rank in started]


@pytest.fixture
def toy():
    return run_toy


@pytest.fixture
def forked():
    """Start functions in processes, on ranks, and wait for them."""

    class Tools:
        one = staticmethod(fork)
        ranks = staticmethod(fork_ranks)
        wait = staticmethod(wait_for)
        train = staticmethod(train_toy)
        data = staticmethod(toy_data)
        loss = staticmethod(toy_loss)
        model = ToyModel

    return Tools


@pytest.fixture
def final():
    """Read the newest state in a folder."""

    def read(out):
        state = CheckpointStore(out).load_latest()
        assert state is not None
        return state

    return read


class Service:
    """Answers as told: path -> (status, body, headers), or a function that says so."""

    def __init__(self):
        self.answers = {}
        self.log = []

    def reply(self, method, path, headers):
        self.log.append((method, path, headers))
        answer = self.answers.get(path, (404, "", {}))
        return answer(method, headers) if callable(answer) else answer


@pytest.fixture
def service():
    serving = Service()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            length = int(self.headers.get("Content-Length") or 0)
            serving.body = self.rfile.read(length)
            path = self.path.partition("?")[0]
            serving.query = self.path.partition("?")[2]
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = serving.reply(self.command, path, headers)
            if answer is None:  # never an answer
                self.close_connection = True
                return
            status, body, more = answer
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            for name, value in more.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

        do_PUT = do_POST = do_GET

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        serving.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield serving
        finally:
            server.shutdown()
            thread.join()
