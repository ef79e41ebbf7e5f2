"""A run on the reference core, one attempt for each order: a process forked from this one.

Orders are JSON, one a line: `{"local", "remote", "train", "then", "die_at"}`. The answer
is the status of the attempt and what it said: the step that it resumed at, and a digest
of its whole state there and after each step.
"""

import hashlib
import json
import os
import signal
import sys
import tempfile

import torch
from torch.utils.data import DataLoader, TensorDataset

import spotchaos.training as core
from spotchaos.stores import open_store
from spotchaos.training.pollers import Sighting

HORIZON, SAVE_EVERY, BATCH = 14, 3, 4
# What changes files, as Python tells of it before it happens.
FILE_EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir"}


def digest(value):
    """Return one number for all bits of nested state."""
    found = hashlib.sha256()

    def add(one):
        if isinstance(one, torch.Tensor):
            found.update(str(one.dtype).encode() + one.numpy().tobytes())
        elif isinstance(one, dict):
            for key in sorted(one, key=str):
                found.update(str(key).encode())
                add(one[key])
        elif isinstance(one, list | tuple):
            for each in one:
                add(each)
        else:
            found.update(repr(one).encode())

    add(value)
    return found.hexdigest()[:16]


def die_at(count):
    """Be killed before the `count`th change of a file."""
    left = [count]

    def audit(event, arguments):
        changes = event in FILE_EVENTS or (
            event == "open"
            and isinstance(arguments[2], int)
            and arguments[2] & os.O_ACCMODE != os.O_RDONLY
        )
        if changes:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)


def attempt(order, say):
    """Resume, train some steps, and end as ordered; return the exit status."""
    core.seed_everything(0)
    data = TensorDataset(torch.randn(24, 4), torch.randint(0, 2, (24,)))
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.Dropout(0.2), torch.nn.Linear(5, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, HORIZON)
    sampler = core.ResumableSampler(data, seed=0, multiple_of=BATCH)
    loader = DataLoader(data, BATCH, sampler=sampler, generator=torch.Generator())
    state = core.TrainingState(
        model=model, optimizers=optimizer, schedulers=schedule, sampler=sampler
    )
    local = core.CheckpointStore(order["local"], run_id="any-sequence", keep=2)
    mirror = core.Mirror(local, open_store(order["remote"]))
    keeper = core.Keeper(local, mirror=mirror, in_background=False)
    if order["die_at"]:
        die_at(order["die_at"])
    keeper.prepare()
    saved = local.load_latest()
    if saved is not None:
        state.restore(saved)
    say("resumed", state.step)
    say(state.step, digest(state.capture()))
    goal = min(HORIZON, state.step + order["train"])
    with core.InterruptionWatch() as watch:
        while state.step < HORIZON:
            if sampler.epoch_is_over:
                sampler.next_epoch()
            for x, y in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                schedule.step()
                sampler.advance(len(x))
                state.step += 1
                say(state.step, digest(state.capture()))
                if state.step == goal < HORIZON:
                    if order["then"] == "kill":
                        os.kill(os.getpid(), signal.SIGKILL)
                    if order["then"] == "signal":
                        os.kill(os.getpid(), signal.SIGTERM)
                    if order["then"] == "notice":
                        watch.sight(Sighting("aws", is_order=True))
                due = state.step % SAVE_EVERY == 0 or state.step == HORIZON
                if watch.requested or due:
                    keeper.save(state.capture(), step=state.step)
                    watch.mark_saved()
                if watch.must_stop or state.step == HORIZON:
                    break
            if watch.must_stop:
                break
    keeper.wait()
    return 0 if state.step == HORIZON else 143


def fork(order):
    """Carry out one attempt in a process of its own, and return what came of it."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        status = 1

        def say(*words):
            os.write(theirs, (json.dumps(words) + "\n").encode())

        try:
            torch.set_num_threads(1)
            status = attempt(order, say)
        except Exception as error:
            say("error", f"{type(error).__name__}: {error}")
        finally:
            os._exit(status)
    os.close(theirs)
    with open(ours, encoding="utf-8") as pipe:
        said = [json.loads(line) for line in pipe]
    _, status = os.waitpid(child, 0)
    return {"status": os.waitstatus_to_exitcode(status), "said": said}


if __name__ == "__main__":
    # What a run imports on its way is imported once, before anything is forked.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as warm:
        place = {"local": f"{warm}/local", "remote": f"{warm}/remote"}
        attempt({**place, "train": 1, "then": "signal", "die_at": 0}, lambda *_: None)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(fork(json.loads(line))) + "\n")
        sys.stdout.flush()
