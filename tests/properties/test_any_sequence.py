"""Whatever happens to a run on the reference core, it goes on bit for bit.

Attempts are real processes, killed by SIGKILL before any change of any file: while they
save, copy to the store, delete what is old, sweep, or fetch. The profile `ci` tries the
same few sequences each time; `deep` tries many.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

HORIZON = 14
PROGRAM = Path(__file__).parent / "a_run.py"
MANIFEST = "manifest.json"


class Machines:
    """Starts attempts, each a process, on machines that can be lost."""

    def __init__(self):
        self._server = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def attempt(self, local, remote, *, train=HORIZON, then="go on", die_at=0):
        order = {
            "local": str(local),
            "remote": str(remote),
            "train": train,
            "then": then,
            "die_at": die_at,
        }
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def close(self):
        self._server.stdin.close()
        self._server.wait(timeout=60)
        self._server.stdout.close()


@pytest.fixture(scope="module")
def machines():
    found = Machines()
    yield found
    found.close()


@pytest.fixture(scope="module")
def uninterrupted(machines, tmp_path_factory):
    """Return the digest of the state after each step of a run that was left alone."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    found = machines.attempt(folder / "local", folder / "remote")
    assert found["status"] == 0
    digests = dict(line for line in found["said"] if line[0] != "resumed")
    assert sorted(digests) == list(range(HORIZON + 1))
    assert len({*digests.values()}) == HORIZON + 1
    return digests


def steps_in(folder):
    """Return the checkpoints below a folder, by the manifest that commits each."""
    found = folder.glob(f"step-*/{MANIFEST}")
    return {(int(path.parent.name.split("-")[1].split(".")[0]), path) for path in found}


def machine_of(machines, uninterrupted):
    class AnySequence(RuleBasedStateMachine):
        @initialize()
        def begin(self):
            self.folder = Path(tempfile.mkdtemp(prefix="sequence-"))
            self.local, self.remote = self.folder / "local", self.folder / "remote"
            self.damaged = set()

        def whole(self):
            """Return the steps that can be resumed from."""
            found = steps_in(self.local) | steps_in(self.remote)
            return {step for step, path in found if path not in self.damaged}

        def attempt(self, **order):
            newest = max(self.whole(), default=0)
            found = machines.attempt(self.local, self.remote, **order)
            said = found["said"]
            assert not [line for line in said if line[0] == "error"]
            if said:
                assert said[0] == ["resumed", newest]
            for step, digest in said[1:]:
                assert digest == uninterrupted[step], f"step {step} is another one"
            # What a later save replaced is gone, and with it its damage.
            self.damaged = {path for path in self.damaged if path.exists()}
            last = said[-1][0] if len(said) > 1 else None
            return found["status"], last

        @rule(steps=st.integers(1, 5), how=st.sampled_from(["signal", "notice"]))
        def is_told_to_stop(self, steps, how):
            status, last = self.attempt(train=steps, then=how)
            assert status == (0 if last == HORIZON else 143)
            assert max(self.whole()) == last

        @rule(steps=st.integers(1, 5))
        def is_killed_between_saves(self, steps):
            status, last = self.attempt(train=steps, then="kill")
            assert status == (0 if last == HORIZON else -9)

        @rule(operation=st.integers(1, 40), steps=st.integers(1, 5))
        def is_killed_while_files_change(self, operation, steps):
            status, last = self.attempt(train=steps, then="signal", die_at=operation)
            assert status in ({0, -9} if last == HORIZON else {143, -9})

        @precondition(lambda self: self.local.exists())
        @rule()
        def loses_its_machine(self):
            shutil.rmtree(self.local)
            self.damaged = {path for path in self.damaged if path.exists()}

        @precondition(lambda self: len(self.whole()) > 1)
        @rule(where=st.floats(0, 1, exclude_max=True))
        def newest_checkpoint_is_damaged(self, where):
            found = [c for c in steps_in(self.local) if c[1] not in self.damaged]
            if not found:
                return
            path = max(found)[1]
            state = max(path.parent.iterdir(), key=lambda file: file.stat().st_size)
            content = bytearray(state.read_bytes())
            content[int(where * len(content))] ^= 16
            state.write_bytes(content)
            self.damaged.add(path)

        @invariant()
        def something_can_be_resumed_from_or_nothing_was_saved(self):
            if hasattr(self, "folder"):
                assert self.whole() or not steps_in(self.local)

        def teardown(self):
            if not hasattr(self, "folder"):
                return
            status, last = self.attempt()
            assert (status, last) == (0, HORIZON)
            shutil.rmtree(self.folder)

    return AnySequence


def few(examples):
    """Return so many examples, or a share of what the profile `deep` asks for."""
    of_profile = settings.default.max_examples
    return settings(
        max_examples=examples if of_profile <= 100 else of_profile // 10,
        stateful_step_count=8,
        deadline=None,
        database=None,
    )


@pytest.mark.timeout(1200)  # attempts are processes, and a loaded machine no failure
@pytest.mark.parametrize(
    "examples",
    [
        pytest.param(3, id="few"),
        pytest.param(40, id="many", marks=pytest.mark.slow),
    ],
)
def test_any_sequence_of_misfortunes_ends_as_the_uninterrupted_run(
    machines, uninterrupted, examples
):
    machine = machine_of(machines, uninterrupted)
    run_state_machine_as_test(machine, settings=few(examples))
