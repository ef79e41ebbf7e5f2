"""Our figures beside those of another tool, all in one run: CPU-seconds and wall.

    python benchmarks/compare.py --against INTERPRETER [--only ROW...] [--plans N]

INTERPRETER has `ckpt-chaos` installed; the programs under test run under this one, for
both tools. The other tool is slow, so that it gets `--max-points` crash points (its own,
evenly drawn) and its rate is that of these: verdicts by CPU-seconds, fixed costs
included, for both. CPU-seconds are those of a control group, so that nothing escapes
them; wall times hold on a quiet machine only. Nothing is cached between rows.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOY = """
import argparse, os, random
import torch

a = argparse.ArgumentParser(); a.add_argument("--out", required=True); a = a.parse_args()
os.makedirs(a.out, exist_ok=True)
torch.manual_seed(0); random.seed(0)
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 4))
opt = torch.optim.AdamW(net.parameters(), 1e-2)
x, y = torch.randn(320, 32), torch.randint(0, 4, (320,))
start, last = 0, os.path.join(a.out, "last.pt")
if os.path.exists(last):
    c = torch.load(last); net.load_state_dict(c["net"]); opt.load_state_dict(c["opt"]); torch.set_rng_state(c["rng"]); start = c["step"]
for step in range(start, 20):
    i = torch.arange(16 * step, 16 * step + 16)
    loss = torch.nn.functional.cross_entropy(net(x[i]), y[i]); opt.zero_grad(); loss.backward(); opt.step()
    if (step + 1) % 5 == 0:
        torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "rng": torch.get_rng_state(), "step": step + 1}, last + ".tmp")
        os.replace(last + ".tmp", last)
torch.save(net.state_dict(), os.path.join(a.out, "final.pt"))
"""
TRAINER = """
import sys, torch
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint
out = sys.argv[1]
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)
    def forward(self, x, labels):
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}
data = [{"x": torch.randn(8), "labels": i % 4} for i in range(96)]
args = TrainingArguments(out, max_steps=12, save_steps=4, per_device_train_batch_size=8,
                         report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=100)
trainer = Trainer(model=Net(), args=args, train_dataset=data)
import os
last = get_last_checkpoint(out) if os.path.isdir(out) else None
trainer.train(resume_from_checkpoint=last)
torch.save(trainer.model.state_dict(), os.path.join(out, "final.pt"))
"""
RANKS = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
opt = torch.optim.SGD(net.parameters(), 0.1)
start = 0
if os.path.exists("last.pt"):
    c = torch.load("last.pt"); net.load_state_dict(c["net"]); start = c["step"]
x = torch.arange(160.0).reshape(20, 8) / 160
for step in range(start, 10):
    loss = net(x[step] + dist.get_rank()).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
    if step % 3 == 2 and dist.get_rank() == 0:
        torch.save({"net": net.state_dict(), "step": step + 1}, "last.tmp")
        os.replace("last.tmp", "last.pt")
    dist.barrier()
del net
dist.destroy_process_group()
"""


class Cost:
    """Wall and CPU seconds of commands and all that descends from them."""

    def __init__(self):
        self.wall_s = self.cpu_s = 0.0
        self._group = Path(f"/sys/fs/cgroup/cpuacct/spotchaos-compare-{os.getpid()}")
        self._usage = "cpuacct.usage"
        if not self._group.parent.is_dir():
            self._group = Path("/sys/fs/cgroup") / self._group.name
            self._usage = "cpu.stat"
        try:
            self._group.mkdir(exist_ok=True)
        except OSError as error:
            raise SystemExit(f"CPU-seconds need a control group: {error}") from None

    def run(self, command, folder, **variables):
        env = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
        tasks = str(self._group / "cgroup.procs")
        before, begun = self._used(), time.monotonic()
        join = ["sh", "-c", f'echo $$ > {tasks} && exec "$@"', "sh", *map(str, command)]
        done = subprocess.run(
            join, cwd=folder, env=env, capture_output=True, text=True, check=False
        )
        self.wall_s += time.monotonic() - begun
        self.cpu_s += self._used() - before
        return done

    def _used(self):
        text = (self._group / self._usage).read_text()
        if self._usage == "cpu.stat":
            return int(re.search(r"usage_usec (\d+)", text)[1]) / 1e6
        return int(text) / 1e9

    def close(self):
        with contextlib.suppress(OSError):
            self._group.rmdir()


def measured(work):
    cost = Cost()
    try:
        return work(cost), cost
    finally:
        cost.close()


def ours(cost, folder, command, *options, verb="run"):
    """Run our command without its cache, and return its report."""
    report = Path(folder, "report.json")
    words = [sys.executable, "-m", "spotchaos", verb, "--no-cache", *options]
    done = cost.run([*words, "--json", report, "--", *command], folder)
    if not report.exists():
        raise SystemExit(
            f"spotchaos failed: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return json.loads(report.read_text())


def fresh_folder(program):
    folder = Path(tempfile.mkdtemp(prefix="spotchaos-compare-"))
    (folder / "train.py").write_text(program)
    return folder


def verdict_rate(args, name, program, place, plans):
    """Return the row of verdicts per CPU-second, ours and theirs."""
    folder = fresh_folder(program)
    try:
        command = [sys.executable, "train.py"]
        report, cost = measured(
            lambda c: ours(c, folder, [*command, *place], "--trials", str(plans))
        )
        decided = sum(t["verdict"] != "unknown" for t in report["trials"])
        rate = decided / cost.cpu_s
        coverage = report["coverage"]
        print(
            f"{name}, ours: {decided} verdicts of {plans} plans, {cost.cpu_s:.1f} CPU-s,"
            f" {cost.wall_s:.1f} s wall, {coverage['skipped_as_equal']} skipped as equal:"
            f" {rate:.2f} per CPU-s"
        )
        if args.against is None:
            return
        theirs = [Path(args.against).with_name("ckpt-chaos"), "run"]
        theirs += ["--max-points", str(args.max_points), "--work", folder / "work"]
        theirs += ["--result-file", "{out}/final.pt", "--"]
        words = [w.replace("ckpt", "{out}") for w in place]
        done, cost = measured(lambda c: c.run([*theirs, *command, *words], folder))
        points = len(
            re.findall(
                r"\b(PASS|OK|LOST_WORK|HARD_FAIL|SILENT_DIVERGENCE)\b",
                "\n".join(done.stdout.splitlines()[:-1]),
            )
        )
        points = min(points, args.max_points)
        if not points:
            print(
                f"{name}, theirs: no verdict\n{done.stdout[-800:]}{done.stderr[-800:]}"
            )
            return
        their_rate = points / cost.cpu_s
        print(
            f"{name}, ckpt-chaos: {points} verdicts, {cost.cpu_s:.1f} CPU-s,"
            f" {cost.wall_s:.1f} s wall: {their_rate:.3f} per CPU-s;"
            f" ours is {rate / their_rate:.0f} times that"
        )
    finally:
        shutil.rmtree(folder)


def row_toy(args):
    verdict_rate(args, "toy", TOY, ["--out", "ckpt"], args.plans)


def row_trainer(args):
    verdict_rate(args, "HF Trainer", TRAINER, ["ckpt"], max(1, args.plans // 5))


def row_curve(args):
    """Show that cost grows with the distinct states, not with the kill points."""
    folder = fresh_folder(TOY)
    try:
        command = [sys.executable, "train.py", "--out", "ckpt"]
        for plans in (10, 100, 1000):
            report, cost = measured(
                lambda c, n=plans: ours(c, folder, command, "--trials", str(n))
            )
            coverage = report["coverage"]
            print(
                f"curve: {plans} plans with {coverage['kill_points']} kill points,"
                f" {coverage['skipped_as_equal']} from recorded runs, of which"
                f" {coverage['spot_checked']} were run for real as well,"
                f" {cost.cpu_s:.1f} CPU-s, {1000 * cost.cpu_s / plans:.0f} ms each"
            )
    finally:
        shutil.rmtree(folder)


def row_ranks(args):
    folder = fresh_folder(RANKS)
    try:
        trials = 20
        report, cost = measured(
            lambda c: ours(
                c,
                folder,
                [sys.executable, "train.py"],
                "--ranks",
                "2",
                "--trials",
                str(trials),
            )
        )
        took = sum(t["wall_s"] for t in report["trials"])
        print(
            f"2 gloo ranks, ours: {len(report['trials'])} trials, verdict"
            f" {report['verdict']}, {took:.1f} s in trials:"
            f" {len(report['trials']) / took:.2f} a second each after the other"
        )
        run = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "train.py",
        ]
        _, cost = measured(lambda c: c.run(run, folder))
        print(
            f"2 gloo ranks, one fresh torchrun: {cost.wall_s:.1f} s, {cost.cpu_s:.1f} CPU-s"
        )
    finally:
        shutil.rmtree(folder)


def row_states(args):
    folder = fresh_folder(TOY)
    try:
        command = [sys.executable, "train.py", "--out", "ckpt"]
        report, cost = measured(
            lambda c: ours(c, folder, command, "--power-loss", "all", verb="explore")
        )
        states = report["coverage"]["crash_states"]
        _, fresh = measured(lambda c: c.run(command, folder))
        a_minute = 60 * states["distinct"] / cost.wall_s
        print(
            f"crash states, ours: {states['distinct']} decided ({states['run']} resumed) in"
            f" {cost.wall_s:.1f} s, baselines included: {a_minute:.0f} a minute;"
            f" a loop of fresh processes {60 / fresh.wall_s:.0f} a minute"
        )
    finally:
        shutil.rmtree(folder)


def row_first(args):
    folder = fresh_folder(TOY)
    try:
        command = [sys.executable, "train.py", "--out", "ckpt"]
        report, cost = measured(lambda c: ours(c, folder, command))
        print(
            f"first verdict: {report['verdict']} after {cost.wall_s:.1f} s wall,"
            f" {cost.cpu_s:.1f} CPU-s"
        )
        words = [sys.executable, "-m", "spotchaos", "--help"]
        best = min(measured(lambda c: c.run(words, folder))[1].cpu_s for _ in range(5))
        code = "import sys, spotchaos.campaign.campaign; print('torch' in sys.modules)"
        done, _ = measured(lambda c: c.run([sys.executable, "-c", code], folder))
        print(
            f"--help: {1000 * best:.0f} ms of CPU; the harness imports torch: {done.stdout.strip()}"
        )
    finally:
        shutil.rmtree(folder)


DUMP = """
import json, sys, torch
from pathlib import Path
folder, files = Path(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
state = {f"layer{i}.weight": torch.randn(4 << 20) for i in range(files)}
for side in "ab":
    torch.save(state, folder / f"{side}.pt")
    (folder / side).mkdir()
    entries, at = [], 0
    with open(folder / side / "1-x.dump-1-weights.bin", "wb") as file:
        for name, tensor in state.items():
            raw = tensor.numpy().tobytes()
            entries.append(dict(name=name, dtype="<f4", torch_dtype="float32", shape=[4 << 20], offset=at, bytes=len(raw)))
            at += file.write(raw)
    index = dict(step=1, component="weights", data="1-x.dump-1-weights.bin", tensors=entries)
    (folder / side / "1-x.dump-1-weights.json").write_text(json.dumps(index))
"""
THEIRS = """
import resource, sys, torch
a, b = (torch.load(f"{sys.argv[1]}/{side}.pt") for side in "ab")
assert all(torch.equal(a[name], b[name]) for name in a)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""
OURS = """
import resource, sys
from pathlib import Path
from spotchaos.oracles.dumps import compare_dumps
assert compare_dumps(Path(sys.argv[1], "a"), Path(sys.argv[1], "b")) is None
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


def row_dumps(args):
    folder = Path(tempfile.mkdtemp(prefix="spotchaos-compare-"))
    try:
        make = [sys.executable, "-c", DUMP, folder, 64]
        measured(lambda c: c.run(make, folder))
        took = {}
        for name, code in (("theirs", THEIRS), ("ours", OURS)) * 3:
            done, cost = measured(
                lambda c, code=code: c.run([sys.executable, "-c", code, folder], folder)
            )
            if done.returncode:
                raise SystemExit(done.stderr[-2000:])
            best = took.get(name, (float("inf"),))
            took[name] = min(best, (cost.cpu_s, cost.wall_s, int(done.stdout)))
        (theirs, their_wall, their_mb), (cpu, wall, mb) = took["theirs"], took["ours"]
        print(
            f"two checkpoints of 1 GB: ours {cpu:.1f} CPU-s, {wall:.1f} s, {mb} MB;"
            f" torch.load and torch.equal {theirs:.1f} CPU-s, {their_wall:.1f} s,"
            f" {their_mb} MB: {theirs / cpu:.1f} times by CPU, start-up included"
        )
    finally:
        shutil.rmtree(folder)


COLD = """
import dataclasses
import spotchaos.config.options

real = spotchaos.config.options.make_settings


def cold(*values, **named):
    return dataclasses.replace(real(*values, **named), warm=False, no_skip=True)


spotchaos.config.options.make_settings = cold
"""


def row_scenarios(args):
    """Compare the catalogue's quick scenarios with the same in fresh processes."""
    folder = Path(tempfile.mkdtemp(prefix="spotchaos-compare-"))
    try:
        (folder / "spotchaos_cold.py").write_text(COLD)
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        words += ["-m", "not slow", str(ROOT / "scenarios"), "--ignore"]
        words += [str(ROOT / "scenarios" / "test_properties.py")]
        took = {}
        for name, more in (("warm", []), ("cold", ["-p", "spotchaos_cold"])):
            path = f"{ROOT}:{folder}"
            done, took[name] = measured(
                lambda c, more=more, path=path: c.run(
                    [*words, *more], ROOT, PYTHONPATH=path
                )
            )
            print(f"scenarios, {name}: {done.stdout.splitlines()[-1]}")
        warm, cold = took["warm"], took["cold"]
        print(
            f"scenarios: {warm.cpu_s:.0f} CPU-s, {warm.wall_s:.0f} s wall; in fresh"
            f" processes, each run: {cold.cpu_s:.0f} CPU-s, {cold.wall_s:.0f} s wall:"
            f" {cold.cpu_s / warm.cpu_s:.1f} times by CPU"
        )
    finally:
        shutil.rmtree(folder)


ROWS = {
    "dumps": row_dumps,
    "first": row_first,
    "toy": row_toy,
    "trainer": row_trainer,
    "curve": row_curve,
    "ranks": row_ranks,
    "states": row_states,
    "scenarios": row_scenarios,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--against", help="interpreter that has ckpt-chaos")
    parser.add_argument("--only", nargs="*", choices=ROWS, default=list(ROWS))
    parser.add_argument("--plans", type=int, default=300)
    parser.add_argument("--max-points", type=int, default=8)
    args = parser.parse_args()
    for name in args.only:
        ROWS[name](args)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
