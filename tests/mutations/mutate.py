"""Break the oracles in every way of the list, and tell which ways no test notices.

    python tests/mutations/mutate.py [MODULE[.NAME]]...

The package is copied first, and only the copy is broken. Exit status 1 if a mutation
survives, or no longer fits the source.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).parent / "MUTATIONS.toml"
# What judges made-up records: the tests of programs would take hours. Those that draw
# their records come last, since the others are quicker.
TESTS = (
    "tests/oracles/test_rules_*.py",
    "tests/exploration/test_durability.py",
    "tests/oracles/test_[!jr]*.py",
    "tests/oracles/test_repeatable.py",
    "tests/oracles/test_judge_*.py",
)
TIMEOUT_S = 1800


@dataclass(frozen=True, slots=True)
class Mutation:
    """One text of one oracle, and what takes its place."""

    module: str
    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    def apply(self, source: str) -> str:
        """Return the source with this flaw.

        Raises:
            ValueError: the text is not there exactly once.
        """
        if source.count(self.old) != 1:
            raise ValueError(
                f"{self}: the text is there {source.count(self.old)} times"
            )
        return source.replace(self.old, self.new)


def read_list(path: Path = LIST) -> list[Mutation]:
    """Return the mutations in the order of the list."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return [
        Mutation(module, name, **texts)
        for module, named in table.items()
        for name, texts in named.items()
    ]


def are_wanted(mutation: Mutation, wanted: list[str]) -> bool:
    """Tell whether the command line names a mutation, or its module, or nothing."""
    return not wanted or mutation.module in wanted or str(mutation) in wanted


def passes(copy: Path) -> bool:
    """Tell whether the tests of the oracles pass in a copy of the repository."""
    tests = [str(path) for one in TESTS for path in sorted(copy.glob(one))]
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_PROFILE": "ci",
    }
    done = subprocess.run(
        [*command, "-m", "not slow", *tests],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode not in (0, 1):
        sys.stderr.write(done.stdout.decode(errors="replace")[-2000:])
        raise RuntimeError(f"pytest ended with status {done.returncode}")
    return done.returncode == 0


def say(line: str) -> None:
    """Print a line at once: each takes a while to come about."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(wanted: list[str]) -> int:
    """Try the mutations, and print a line for each."""
    chosen = [m for m in read_list() if are_wanted(m, wanted)]
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = Path(folder)
        ignore = shutil.ignore_patterns("__pycache__")
        for name in ("spotchaos", "tests"):
            shutil.copytree(ROOT / name, copy / name, ignore=ignore)
        for name in ("conftest.py", "pyproject.toml"):
            shutil.copy(ROOT / name, copy / name)
        if not passes(copy):
            say("the tests fail without any mutation")
            return 1
        for mutation in chosen:
            path = copy / "spotchaos" / "oracles" / f"{mutation.module}.py"
            source = path.read_text(encoding="utf-8")
            try:
                path.write_text(mutation.apply(source), encoding="utf-8")
                verdict = "SURVIVES" if passes(copy) else "killed"
            except ValueError as error:
                verdict = f"STALE ({error})"
            finally:
                path.write_text(source, encoding="utf-8")
            if verdict != "killed":
                wrong.append(str(mutation))
            say(f"{verdict:<8}  {mutation}")
    say(f"{len(chosen) - len(wrong)} of {len(chosen)} mutations are noticed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
