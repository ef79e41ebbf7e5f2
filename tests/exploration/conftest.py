"""Explorations of small programs, each run once for all the tests that look at it."""

import os
import shutil
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
SCENARIOS = Path(__file__).parents[2] / "scenarios" / "programs"


@pytest.fixture(scope="session", autouse=True)
def own_python():
    """Let `python` be the interpreter of the tests, whether or not it is activated."""
    with pytest.MonkeyPatch.context() as patch:
        here = str(Path(sys.executable).parent)
        patch.setenv("PATH", here, prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def explored(own_python, tmp_path_factory):
    """Return a function that explores a program; the same one is explored once."""
    from spotchaos.config.settings import Settings
    from spotchaos.explore.exploration import explore
    from spotchaos.report.document import make_document

    known = {}

    def run(source, *arguments, command=("python",), **options):
        key = (source, arguments, command, tuple(sorted(options.items())))
        if key not in known:
            folder = tmp_path_factory.mktemp(Path(source).stem)
            shutil.copy(source, folder)
            settings = Settings(
                command=(*command, Path(source).name, *arguments),
                folder=folder,
                **options,
            )
            outcome = explore(settings, lambda event: None)
            # Nothing is found in what was not looked at.
            assert outcome.trouble is None, (outcome.trouble, outcome.hint)
            known[key] = make_document(outcome)
        return known[key]

    return run


@pytest.fixture(scope="session")
def toy(explored):
    """Return a function that explores the toy that saves in one way."""

    def run(how, **options):
        return explored(PROGRAMS / "toy.py", how, **{"saves": 2, **options})

    return run


@pytest.fixture
def quick(tmp_path):
    """Return the settings for a program of few states, in a folder of its own."""
    from spotchaos.config.settings import Settings

    shutil.copy(PROGRAMS / "quick.py", tmp_path)
    return Settings(command=("python", "quick.py"), folder=tmp_path, saves=1)
