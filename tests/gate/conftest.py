"""A stand-in for the command that reads every option and carries out no campaign."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

STAND_IN = '''#!{python}
import importlib.util, json, os, sys
spec = importlib.util.spec_from_file_location("outcomes", {outcomes!r})
outcomes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(outcomes)
import dataclasses
import spotchaos.campaign.campaign

def run(settings, listener):
    """End as a campaign would, with the settings that were really asked for."""
    outcome = getattr(outcomes, os.environ.get("STAND_IN", "held"))()
    if settings.shard:
        part, of = settings.shard
        outcome = dataclasses.replace(outcome, trials=outcome.trials[part - 1 :: of])
    outcome = dataclasses.replace(outcome, settings=settings)
    for event in outcomes.events(outcome):
        listener(event)
    with open(os.environ["ASKED"], "w") as file:
        json.dump({{name: str(getattr(settings, name)) for name in
            ("command", "promise", "fail_on", "budget_s", "shard", "signal", "grace_s")}}, file)
    return outcome

spotchaos.campaign.campaign.run = run
from spotchaos.cli import main
main(prog_name="spotchaos")
'''


class Shell:
    """Runs a piece of shell as it stands, with the stand-in on its path."""

    def __init__(self, folder):
        self.folder = folder
        self.bin = folder / "bin"
        self.asked = folder / "asked.json"
        self.bin.mkdir()
        self.program(
            "spotchaos",
            STAND_IN.format(
                python=sys.executable, outcomes=str(ROOT / "tests/report/outcomes.py")
            ),
        )
        # A link would leave the virtual environment behind.
        self.program("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')

    def program(self, name, text):
        """Put a program on the path."""
        path = self.bin / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def environment(self, **more):
        return {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.folder),
            "ASKED": str(self.asked),
            **more,
        }

    def run(self, text, *, shell=("bash", "-e", "-o", "pipefail"), **more):
        return subprocess.run(
            [*shell, "-c", text],
            cwd=self.folder,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path)
