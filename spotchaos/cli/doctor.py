"""`spotchaos doctor`: what this machine can do, and what falls back to what."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile

import click

from spotchaos import __version__


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> int:
    """Say what this machine can isolate, record and interrupt."""
    from spotchaos.launch.isolation.credentials import removed_names
    from spotchaos.launch.isolation.mechanisms import find_mechanisms
    from spotchaos.launch.isolation.remedies import find_place, remedies
    from spotchaos.launch.supervisor.supervisor import supervisor_available

    mechanisms = find_mechanisms()
    available, reason = supervisor_available()
    files = "on" if available else f"off: {reason}"
    recorded, unseen = _recorder(available=available)
    rows = [
        ("spotchaos", __version__),
        ("python", f"{platform.python_version()} at {sys.executable}"),
        ("torch", _torch()),
        ("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        ("cores", _cores()),
        ("memory", _memory()),
        ("room for copies", _room()),
        *mechanisms.as_report().items(),
        ("rights", _rights()),
        ("variables removed", ", ".join(removed_names(os.environ)) or "none"),
        ("file sites", files),
        ("crash states", recorded),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    print()
    unprotected = mechanisms.unprotected()
    for sentence in unprotected:
        print(f"not protected: {sentence}")
    for what in unseen:
        print(f"not recorded: {what}")
    if unprotected or not available:
        for what in remedies(find_place()):
            print(f"would help: {what}")
    if not unprotected:
        print("Every attempt is isolated: nothing of yours is written or reached.")
    return 0


def _rights() -> str:
    """Return which of root's rights attempts keep."""
    from spotchaos.launch.isolation import capabilities

    kept = capabilities.names_of(capabilities.kept_of(capabilities.held_here()))
    names = ", ".join(name.removeprefix("CAP_").lower() for name in kept)
    said = f"of root's: {names}" if names else "a user's"
    return f"{said}; no program gains others (setuid, sudo)"


def _recorder(*, available: bool) -> tuple[str, tuple[str, ...]]:
    """Return how an exploration records a run, and what that does not show."""
    from spotchaos.launch.supervisor import strace
    from spotchaos.recording.python_recorder import NOT_SEEN

    if available:
        return "recorded by seccomp notification", ()
    traces, why = strace.strace_available()
    if traces:
        return "recorded by strace", strace.NOT_SEEN
    return f"recorded within Python, of whole files: {why}", NOT_SEEN


def _torch() -> str:
    """Return torch's version from its metadata; importing it takes seconds."""
    if importlib.util.find_spec("torch") is None:
        return "not found by this interpreter; the program's own may have it"
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "found, version unknown"


def _cores() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    total = os.cpu_count()
    if usable is None or usable == total:
        return str(total)
    return f"{usable} usable of {total}"


def _memory() -> str:
    import psutil

    memory = psutil.virtual_memory()
    return f"{memory.available / 2**30:.1f} GiB free of {memory.total / 2**30:.1f}"


def _room() -> str:
    folder = tempfile.gettempdir()
    return f"{shutil.disk_usage(folder).free / 2**30:.1f} GiB in {folder}"
