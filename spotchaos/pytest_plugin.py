"""The pytest plugin. pytest imports this at start-up, so it must import almost nothing.

Neither torch nor the campaign is imported until a test asks for a trial.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from spotchaos.pytest_support import Harness
    from spotchaos.pytest_support.scenarios import ScenarioFile

# Files that configure a tool, and are no scenario although they end in `.toml`.
NOT_SCENARIOS = ("pyproject.toml", "spotchaos.toml", "EXPECTED.toml")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("spotchaos", "interrupted training runs")
    group.addoption(
        "--spotchaos-command",
        metavar="COMMAND",
        help="the program of every scenario and test that names none",
    )
    group.addoption(
        "--spotchaos-resume-command",
        metavar="COMMAND",
        help="its command for attempts that find a resume point (default: the same)",
    )
    group.addoption(
        "--spotchaos-trials",
        type=int,
        metavar="N",
        help="plans that `random` draws, where a scenario names no number",
    )
    group.addoption(
        "--spotchaos-seed",
        type=int,
        metavar="SEED",
        help="replay the plans that this seed made",
    )
    group.addoption(
        "--spotchaos-promise",
        metavar="PROMISE",
        help="what must hold where a scenario names no promise",
    )
    group.addoption(
        "--spotchaos-report",
        metavar="DIR",
        help="write the JSON report of each campaign into this folder",
    )


def pytest_configure(config: pytest.Config) -> None:
    _demand_values(config)
    config.addinivalue_line(
        "markers",
        "interrupted(*kill_at, **options): the test's `spotchaos` fixture carries out"
        " these plans on the program that the test gives it",
    )


def _demand_values(config: pytest.Config) -> None:
    """Refuse an option that names nothing, as an empty variable leaves it.

    Raises:
        pytest.UsageError: one does.
    """
    for option in ("--spotchaos-command", "--spotchaos-resume-command"):
        given = config.getoption(option)
        if given is None:
            continue
        from spotchaos.config.spellings import words

        try:
            words(given)
        except ValueError:
            raise pytest.UsageError(
                f"{option} is {given!r}, which names no program: is the variable that"
                " should hold it empty?"
            ) from None
    folder = config.getoption("--spotchaos-report")
    if folder is not None and (not folder.strip() or folder.startswith("-")):
        raise pytest.UsageError(
            f"--spotchaos-report is {folder!r}, which is no name of a folder"
        )


def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> ScenarioFile | None:
    if file_path.suffix != ".toml" or file_path.name in NOT_SCENARIOS:
        return None
    if not (_is_scenario(file_path, parent) or _is_named(file_path, parent)):
        return None
    from spotchaos.pytest_support.scenarios import ScenarioFile

    found: ScenarioFile = ScenarioFile.from_parent(parent, path=file_path)
    return found


def _is_scenario(path: Path, parent: pytest.Collector) -> bool:
    """Tell whether the file lies in a folder `scenarios` of this repository."""
    root = parent.config.rootpath
    inside = path.relative_to(root) if path.is_relative_to(root) else path
    return "scenarios" in inside.parts[:-1]


def _is_named(path: Path, parent: pytest.Collector) -> bool:
    """Tell whether the file stands on pytest's command line itself."""
    config = parent.config
    named = (Path(str(a).split("::")[0]) for a in config.args)
    return any((config.invocation_params.dir / n).resolve() == path for n in named)


@pytest.fixture
def spotchaos(request: pytest.FixtureRequest, tmp_path: Path) -> Harness:
    """Carry out a plan on a command or a callable; see `spotchaos.pytest_support.Harness`."""
    from spotchaos.pytest_support import Harness

    marker = request.node.get_closest_marker("interrupted")
    options: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
    if marker is not None and marker.args:
        options.setdefault("kill_at", list(marker.args))
    return Harness(request.config, folder=tmp_path, options=options)


@pytest.fixture
def imds() -> Iterator[Any]:
    """Play EC2's metadata service to `requests` in this process."""
    yield from _in_process("aws")


@pytest.fixture
def gcp_metadata() -> Iterator[Any]:
    """Play Google Cloud's metadata server to `requests` in this process."""
    yield from _in_process("gcp")


@pytest.fixture
def azure_events() -> Iterator[Any]:
    """Play Azure's scheduled events to `requests` in this process."""
    yield from _in_process("azure")


def _in_process(provider: str) -> Iterator[Any]:
    from spotchaos.pytest_support.fakes import in_process

    with in_process(provider) as fake:
        yield fake


@pytest.fixture
def spot_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Serve an S3 on loopback that fails as told; boto3 finds it through variables."""
    from spotchaos.pytest_support.fakes import object_store

    with object_store(monkeypatch) as store:
        yield store


@pytest.fixture
def ddp(tmp_path: Path) -> Any:
    """Run a function on N gloo ranks; see `spotchaos.pytest_support.ddp.run_ranks`."""
    from functools import partial

    from spotchaos.pytest_support.ddp import run_ranks

    return partial(run_ranks, folder=tmp_path)
