"""Running scripts under the probe, without the harness, and reading their marks.

A fresh interpreter costs seconds for `import torch`. Where that is not what is tested,
scripts run in children forked from one parent that has the probe and torch loaded.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from spotchaos.trace.format import decode_lines

ROOT = Path(__file__).parents[2]
BOOT = ROOT / "spotchaos" / "probe" / "boot"

_NURSERY = """
import atexit, json, os, sys, traceback
import numpy, torch, torch.distributed, torch._dynamo, torch._inductor.config
from spotchaos.probe.record import Record
from spotchaos.probe.session import SESSION, parsed_kill
from spotchaos.probe.halt import Harness
from spotchaos.trace.format import ORDERS

def child(job):
    import atexit, json, os, sys, traceback
    os.chdir(job["cwd"])
    out = os.open(job["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(out, 1); os.dup2(out, 2)
    SESSION.orders = {**ORDERS, **job["orders"]}
    SESSION.record = Record(SESSION.orders["trace"])
    SESSION.harness = Harness(SESSION.orders["socket"])
    SESSION._kill = parsed_kill(SESSION.orders["kill"])
    SESSION.role, SESSION.is_child = "main", False
    SESSION.say_hello()
    sys.argv = [job["script"], *job["argv"]]
    names = sys.modules["__main__"].__dict__
    for name in [n for n in names if not n.startswith("__")]:
        del names[name]
    code = 0
    try:
        with open(job["script"]) as file:
            exec(compile(file.read(), job["script"], "exec"), names)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)

for line in sys.stdin:
    job = json.loads(line)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        child(job)
    _, status = os.waitpid(pid, 0)
    print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
"""


class Ran:
    """What a script printed, its exit status, and the marks of its processes."""

    def __init__(self, trace, code, out):
        self.trace = trace
        self.code = code
        self.out = out
        self.processes = []
        for path in sorted(trace.glob("*.trace")):
            self.processes.append(list(decode_lines(path.read_bytes())))

    @property
    def marks(self):
        """The marks of the one process that trained, or of the only main one."""
        trained = [p for p in self.processes if any(m["k"] == "step" for m in p)]
        mains = [p for p in self.processes if p[0].get("role") == "main"]
        (chosen,) = trained or mains
        return chosen

    def of(self, kind, **values):
        return [
            m
            for m in self.marks
            if m["k"] == kind and all(m.get(k) == v for k, v in values.items())
        ]

    @property
    def bye(self):
        (bye,) = self.of("bye")
        return bye

    @property
    def steps(self):
        return self.of("step")

    @property
    def troubles(self):
        return self.of("note", name="probe-trouble")

    def states(self, at="step"):
        return self.of("state", at=at)

    def column(self, component, at="step"):
        """One component of all states, in order of steps."""
        return [s["c"].get(component) for s in self.states(at)]

    def consumed(self, component):
        return [s["c"].get(component) for s in self.steps]


class Place:
    """A folder for one test: the program's working folder and the traces beside it."""

    def __init__(self, path):
        self.path = path
        self.work = path / "work"
        self.work.mkdir(exist_ok=True)
        self._runs = 0

    def orders(self, **orders):
        self._runs += 1
        trace = self.path / f"trace-{self._runs}"
        trace.mkdir()
        return trace, {"trace": str(trace), "folder": str(self.work), **orders}

    def environment(self, *, probe=True, **orders):
        """Return the environment of a program, and its trace folder."""
        trace, written = self.orders(**orders)
        path = trace.with_suffix(".json")
        path.write_text(json.dumps(written))
        env = {k: v for k, v in os.environ.items() if not k.startswith("SPOTCHAOS")}
        env.update(OMP_NUM_THREADS="1", PYTHONHASHSEED="0", PYTHONDONTWRITEBYTECODE="1")
        env.pop("PYTHONPATH", None)
        if probe:
            env.update(PYTHONPATH=str(BOOT), SPOTCHAOS_ORDERS=str(path))
        return env, trace

    def write(self, script, name="program.py"):
        file = self.path / name
        file.write_text(textwrap.dedent(script))
        return file

    def run(self, script, *, probe=True, argv=(), command=None, code=0, **orders):
        """Run a script (text or path) in an interpreter of its own, to its end."""
        env, trace = self.environment(probe=probe, **orders)
        file = script if isinstance(script, Path) else self.write(script)
        process = subprocess.run(
            [*(command or [sys.executable]), str(file), *argv],
            env=env,
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=110,
        )
        out = process.stdout + process.stderr
        assert code is None or process.returncode == code, out
        return Ran(trace, process.returncode, out)


class Nursery:
    """The parent that forks scripts."""

    def __init__(self, path):
        self._place = Place(path)
        env, _ = self._place.environment(fingerprint="light")
        self._process = subprocess.Popen(
            [sys.executable, str(self._place.write(_NURSERY))],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, place, script, *, argv=(), code=0, **orders):
        """Run a script in a forked child, to its end."""
        trace, orders = place.orders(**orders)
        file = script if isinstance(script, Path) else place.write(script)
        out = trace.with_suffix(".out")
        job = {
            "script": str(file),
            "argv": list(argv),
            "cwd": str(place.work),
            "out": str(out),
            "orders": orders,
        }
        print(json.dumps(job), file=self._process.stdin, flush=True)
        got = json.loads(self._process.stdout.readline())
        text = out.read_text()
        assert code is None or got == code, text
        return Ran(trace, got, text)

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)
