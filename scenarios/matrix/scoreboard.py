"""A scoreboard of frameworks: which promise holds, what was found, and how to see it.

    python scenarios/matrix/scoreboard.py [--out FOLDER] [--only NAME]...

Each program is tried in a fresh copy of its file: killed in the middle of an epoch and
at the edges of a run, or at every file operation of a save. Writes `scoreboard.md` and
`scoreboard.json`. What a row shows is kept as a scenario, with the version, by hand.
"""

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = HERE.parent / "programs"
LONGEST_S = 1200
# Distributions that stand for the frameworks of EXPECTED.toml.
PACKAGES = {"torch.distributed": "torch"}


def rows():
    """Return name -> row, of the programs found by hand and of those beyond."""
    expected = tomllib.loads((PROGRAMS / "EXPECTED.toml").read_text())["programs"]
    found = {
        name: {
            "program": f"../programs/{entry['command'][-1]}",
            "command": entry["command"],
            "package": PACKAGES.get(entry["framework"], entry["framework"]),
            "options": ["--kill-at", entry["kill-at"]],
            "verdict": entry["verdict"],
        }
        for name, entry in expected.items()
        if entry["framework"] != "torch"
    }
    return found | tomllib.loads((HERE / "EXPECTED.toml").read_text())


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def tried(row, folder):
    """Carry out one row in `folder` and return what the scoreboard says of it."""
    shutil.copy(HERE / row["program"], folder)
    report = folder / "report.json"
    words = [sys.executable, "-m", "spotchaos"]
    words += ["explore"] if row.get("explore") else ["run"]
    words += row.get("options", [])
    words += ["--json", str(report), "--", *row["command"]]
    beside_us = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    root = str(HERE.parents[1])
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, "PATH": beside_us, "PYTHONPATH": root},
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"verdict": "unknown", "trouble": f"no end within {LONGEST_S} s"}
    if not report.exists():
        return {"verdict": "unknown", "trouble": (done.stderr or done.stdout)[-400:]}
    said = json.loads(report.read_text())
    return {
        "verdict": said["verdict"],
        "holds_up_to": said["holds_up_to"],
        "findings": [
            {"name": finding["name"], "replay": _token(said, finding)}
            for finding in said["findings"]
        ],
        "trouble": said.get("trouble"),
        "wall_s": said.get("wall_s"),
    }


def _token(said, finding):
    """Return the token of the first trial that shows a finding."""
    shown = {t["number"]: t["replay"] for t in said["trials"]}
    return next((shown[n] for n in finding["trials"] if shown.get(n)), None)


def as_markdown(board):
    lines = [
        "| program | package | how | verdict | holds up to | findings |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    tokens = []
    for name, row in board.items():
        package = f"{row['package']} {row['version'] or ''}".strip()
        if row.get("absent"):
            lines.append(f"| {name} | {package} | | not tried | | {row['absent']} |")
            continue
        found = ", ".join(f"`{f['name']}`" for f in row.get("findings", ()))
        how = " ".join(row["how"])
        lines.append(
            f"| {name} | {package} | `{how}` | {row['verdict']} |"
            f" {row.get('holds_up_to') or 'none'} | {found or row.get('trouble') or ''} |"
        )
        tokens += [
            f"- {name}, `{f['name']}`: `{f['replay']}`"
            for f in row.get("findings", ())
            if f["replay"]
        ]
    return "\n".join([*lines, "", "Tokens for `spotchaos replay`:", "", *tokens, ""])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--only", action="append")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    board, wrong = {}, []
    for name, row in rows().items():
        if args.only and name not in args.only:
            continue
        version = version_of(row["package"])
        entry = {"package": row["package"], "version": version}
        absent = row.get("absent") or (None if version else "it is not installed")
        if absent:
            board[name] = {**entry, "absent": absent}
        else:
            with tempfile.TemporaryDirectory(prefix="scoreboard-") as folder:
                said = tried(row, Path(folder))
            verb = "explore" if row.get("explore") else "run"
            board[name] = {**entry, "how": [verb, *row.get("options", [])], **said}
            if said["verdict"] != row.get("verdict", said["verdict"]):
                wrong.append(f"{name}: {said['verdict']} instead of {row['verdict']}")
        print(name, board[name].get("verdict", absent), flush=True)
        (args.out / "scoreboard.json").write_text(json.dumps(board, indent=1) + "\n")
        (args.out / "scoreboard.md").write_text(as_markdown(board))
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
