"""The table of docs/explanation/cost.md: policies on published spot traces.

    python benchmarks/cost_traces.py FOLDER [--runs N]

FOLDER is the one of github.com/skypilot-org/spot-traces, or any with traces below it. The
number of machines is the most that a trace has at once. Prints Markdown.
"""

import argparse
from pathlib import Path

from spotchaos.cost import Job, Prices, Question, read_traces, study
from spotchaos.cost.study import BEST, DEADLINE, EVEN, NOTICE
from spotchaos.cost.units import hours, nano, us

WORK_H, DEADLINE_H = 48, 72
# A spot machine costs 30 % of an on-demand one: shares are shown, no dollars.
PRICES = Prices(spot=nano(0.3), on_demand=nano(1.0))
SHOWN = (BEST, NOTICE, DEADLINE, EVEN)


def row_of(path, *, runs):
    trace = read_traces([path])[0]
    job = Job.from_seconds(
        steps=WORK_H * 3600,
        step_s=1.0,
        save_stall_s=20,
        cold_s=90,
        resume_s=90,
        provision_s=270,
        notice_s=120,
        nodes=max(1, trace.most),
    )
    question = Question(
        job=job,
        traces=(trace,),
        deadline_us=us(DEADLINE_H * 3600),
        prices=PRICES,
        runs=runs,
        search_runs=runs,
    )
    found = study(question)
    cells = [
        path.parent.name,
        trace.name,
        str(job.nodes),
        f"{hours(trace.length_us) / 24:.0f}",
        f"{100 * trace.availability(job.nodes):.0f}",
        f"{trace.mean_window_us(job.nodes) / 3.6e9:.1f}",
    ]
    best = found.row(BEST)
    cells.append("-" if best is None else f"{best.policy.every / 60:.0f}")
    cells.append("-" if found.young is None else f"{found.young / 60:.0f}")
    alone = found.row("on demand alone").dollars.mean
    for name in SHOWN:
        row = found.row(name)
        if row is None or row.hours is None:
            cells.append("-")
            continue
        saved = 100 * (1 - row.dollars.mean / alone)
        late = "" if row.meets_deadline > 0.999 else f", {100 * row.meets_deadline:.0f}"
        cells.append(f"{saved:.0f} ({row.hours.median:.0f} h{late})")
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=100)
    options = parser.parse_args()
    heads = ["traces", "zone", "nodes", "days", "available, %", "mean window, h"]
    heads += ["best interval, min", "Young, min"]
    heads += ["spot alone", "spot alone, on notice", "on demand if it must"]
    heads += ["on demand when behind"]
    print("| " + " | ".join(heads) + " |")
    print("| " + " | ".join("---" for _ in heads) + " |")
    for path in sorted(options.folder.rglob("*.json")):
        print(row_of(path, runs=options.runs), flush=True)


if __name__ == "__main__":
    main()
