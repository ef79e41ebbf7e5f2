"""The gate on a repository of its own: from `git init` to red, and to green."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location(
    "gate_reading", ROOT / "tests" / "docs" / "reading.py"
)
reading = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = reading
_SPEC.loader.exec_module(reading)

KNOWN = """
[[known]]
finding = "{}"
reason = "the loop is being rewritten"
until = 2999-12-31
"""


class Repository:
    """A small repository whose pull requests the action looks at."""

    def __init__(self, shell):
        self._shell = shell
        self.folder = shell.folder / "repository"
        self.folder.mkdir()
        shell.program(
            "spotchaos", f'#!/bin/sh\nexec {sys.executable} -m spotchaos "$@"\n'
        )
        self.git("init", "--quiet")

    def git(self, *words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        done = subprocess.run(
            ["git", *identity, *words],
            cwd=self.folder,
            env=self._shell.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    def commit(self, **files):
        for name, text in files.items():
            (self.folder / name.replace("__", ".")).write_text(text)
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", "a change")

    def gate(self):
        """Run the step of the action on what is committed, and return its status."""
        action = yaml.safe_load((ROOT / "action.yml").read_text())
        step = next(s for s in action["runs"]["steps"] if s.get("id") == "gate")
        inputs = {name: entry["default"] for name, entry in action["inputs"].items()}
        inputs |= {"command": "python train.py", "options": "--kill-at step-end:20"}
        inputs |= {"report": "../report"}
        given = {
            name: inputs[value.split("inputs.")[1].split(" ")[0]]
            for name, value in step["env"].items()
        }
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
            cwd=self.folder,
            env=self._shell.environment(
                GITHUB_OUTPUT=str(self._shell.folder / "output"),
                GITHUB_STEP_SUMMARY=str(self._shell.folder / "summary"),
                **given,
            ),
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert self.git("status", "--porcelain") == "", "the gate wrote into the folder"
        return done

    def report(self):
        return json.loads((self._shell.folder / "report" / "report.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_repository_goes_from_red_over_known_to_green(shell):
    repository = Repository(shell)
    versions = reading.versions_of("docs/tutorial.md")
    repository.commit(train__py=versions[0], __gitignore="last.pt\n")

    red = repository.gate()
    assert red.returncode == 1, red.stdout + red.stderr
    found = [finding["name"] for finding in repository.report()["findings"]]
    assert "rng-not-restored" in found
    assert "::error title=spotchaos%3A rng-not-restored" in red.stdout

    repository.commit(spotchaos__toml="".join(KNOWN.format(name) for name in found))
    known = repository.gate()
    assert known.returncode == 0, known.stdout + known.stderr
    assert "the loop is being rewritten" in known.stdout
    assert repository.report()["holds_up_to"] != "bitwise"

    repository.commit(train__py=versions[-1])
    green = repository.gate()
    assert green.returncode == 0, green.stdout + green.stderr
    assert repository.report()["holds_up_to"] == "bitwise"
    assert "if it is fixed, remove its entry" in " ".join(green.stdout.split())
