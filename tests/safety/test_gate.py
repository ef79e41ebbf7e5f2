"""What the gate answers when its surroundings fail: status, standard error, reports."""

import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The command itself, with a campaign that is over at once, as the real one ends.
DRIVER = """
import os, sys, types
sys.path.insert(0, {root!r})
from tests.report import outcomes
import dataclasses

def run(settings, listener):
    outcome = getattr(outcomes, os.environ["OUTCOME"])()
    *events, _ = outcomes.events(outcome)
    if os.environ.get("FAILS"):
        for event in events:
            listener(event)
        raise ZeroDivisionError("x")
    try:
        listener(events[0])
        for event in events[1:]:
            listener(event)
    except KeyboardInterrupt:
        done = int(os.environ.get("DONE", "0"))
        verdict = outcome.verdict if done and str(outcome.verdict) == "violated" else "unknown"
        from spotchaos.model import Verdict
        outcome = dataclasses.replace(outcome, interrupted=True, verdict=Verdict(verdict))
    listener(outcome)
    return outcome

module = types.ModuleType("spotchaos.campaign.campaign")
module.run = run
sys.modules["spotchaos.campaign.campaign"] = module
from spotchaos.cli import main
main(prog_name="spotchaos")
"""


@pytest.fixture
def gate(tmp_path):
    """Return a function that runs `spotchaos run` with standard streams as told."""
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER.format(root=str(ROOT)))
    work = tmp_path / "work"
    work.mkdir()

    def call(*args, outcome="held", stdout=subprocess.PIPE, close=(), **more):
        def shut():
            for descriptor in close:
                os.close(descriptor)

        return subprocess.run(
            [sys.executable, "-P", str(driver), "run", *args, "--", "python", "t.py"],
            cwd=work,
            env={**os.environ, "OUTCOME": outcome, "TMPDIR": str(tmp_path), **more},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            preexec_fn=shut if close else None,
        )

    call.folder = work
    return call


def nobody_reads():
    reading, writing = os.pipe()
    os.close(reading)
    return writing


REPORTS = ("json", "jsonl", "junit", "sarif", "html")
ALL = [word for name in REPORTS for word in (f"--{name}", f"r.{name}")]


def has_all_reports(gate):
    return all((gate.folder / f"r.{name}").stat().st_size for name in REPORTS)


@pytest.mark.parametrize(
    ("outcome", "done", "status"),
    [("held", "0", 3), ("unknown", "0", 3), ("violated", "1", 1), ("violated", "0", 3)],
)
def test_a_reader_that_left_ends_the_campaign_with_its_reports(
    gate, outcome, done, status
):
    pipe = nobody_reads()
    ended = gate(*ALL, outcome=outcome, stdout=pipe, DONE=done)
    os.close(pipe)
    assert ended.returncode == status
    assert ended.stderr == ""
    assert has_all_reports(gate)
    assert json.loads((gate.folder / "r.json").read_text())["interrupted"]


@pytest.mark.parametrize(
    ("outcome", "status"), [("held", 3), ("unknown", 3), ("violated", 1)]
)
def test_a_full_disk_below_the_screen_is_said_and_loses_no_report(
    gate, outcome, status
):
    with open("/dev/full", "w") as full:
        ended = gate(*ALL, outcome=outcome, stdout=full)
    assert ended.returncode == status
    assert "cannot write the screen: No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert has_all_reports(gate)


@pytest.mark.parametrize(
    ("outcome", "status", "full"),
    [
        ("violated", 1, "json"),
        ("unknown", 3, "json"),
        *(("held", 3, name) for name in REPORTS),
    ],
)
def test_a_report_that_cannot_be_written_is_said_and_spoils_no_other(
    gate, outcome, status, full
):
    args = ["/dev/full" if word == f"r.{full}" else word for word in ALL]
    ended = gate(*args, outcome=outcome)
    assert ended.returncode == status
    [said] = ended.stderr.splitlines()
    assert said == ("spotchaos: could not write '/dev/full': No space left on device")
    assert f"\n{outcome.upper()}" in ended.stdout
    assert all(
        (gate.folder / f"r.{name}").stat().st_size for name in REPORTS if name != full
    )


@pytest.mark.parametrize(
    ("outcome", "status", "close"),
    [
        ("violated", 1, (1,)),
        ("unknown", 3, (1,)),
        *(("held", 0, close) for close in ((1,), (2,), (0, 1), (0, 1, 2))),
    ],
)
def test_closed_streams_are_no_streams_of_anybody_else(gate, outcome, status, close):
    ended = gate(*ALL, outcome=outcome, close=close)
    assert ended.returncode == status
    assert has_all_reports(gate)
    if 2 in close:
        assert ended.stderr == ""
    else:
        assert ended.stderr == (
            "spotchaos: standard output is closed, and nothing is shown\n"
        )
    for name in REPORTS:
        assert "spotchaos:" not in (gate.folder / f"r.{name}").read_text()[:20]


def test_a_finding_that_is_not_there_loses_no_report_and_no_verdict(gate):
    ended = gate(*ALL, "--issue", "1")
    assert ended.returncode == 0
    assert "the report has no finding 1" in ended.stderr
    assert has_all_reports(gate)


@pytest.mark.parametrize(("outcome", "status"), [("held", 3), ("violated", 1)])
def test_an_internal_error_loses_no_report_and_no_violation(gate, outcome, status):
    ended = gate(*ALL, outcome=outcome, FAILS="1")
    assert ended.returncode == status
    assert "an internal error: ZeroDivisionError: x" in ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout
    assert has_all_reports(gate)
    report = json.loads((gate.folder / "r.json").read_text())
    assert report["trouble"] == "the campaign could not go on: ZeroDivisionError: x"
    assert len(report["trials"]) > 1


def test_the_job_s_summary_that_cannot_be_written_is_said(gate):
    ended = gate(*ALL, "--github", GITHUB_STEP_SUMMARY="/dev/full")
    assert ended.returncode == 3
    assert "could not write the job's summary" in ended.stderr
    assert has_all_reports(gate)


def test_an_output_in_ascii_is_no_error(gate):
    ended = gate(outcome="violated", PYTHONIOENCODING="ascii:strict")
    assert ended.returncode == 1
    assert ended.stderr == ""


@pytest.mark.parametrize(
    "args",
    [
        ["explain"],
        ["explain", "hang"],
        ["doctor"],
        ["--help"],
        ["run", "--help"],
        ["specimens"],
        ["report", "r.json"],
    ],
    ids=lambda args: " ".join(args),
)
@pytest.mark.parametrize("kind", ["pipe", "full"])
def test_no_command_answers_a_lost_output_with_violated(gate, args, kind):
    gate("--json", "r.json")
    out = nobody_reads() if kind == "pipe" else os.open("/dev/full", os.O_WRONLY)
    ended = subprocess.run(
        [sys.executable, "-m", "spotchaos", *args],
        cwd=gate.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(out)
    assert ended.returncode == 3
    told = os.strerror(errno.ENOSPC)
    assert ended.stderr == (
        "" if kind == "pipe" else f"spotchaos: cannot write the screen: {told}\n"
    )


def test_what_lives_on_after_the_program_s_own_end_is_said(tmp_path):
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """
            import os, signal, subprocess, sys, torch
            torch.manual_seed(0)
            net = torch.nn.Linear(4, 2)
            opt = torch.optim.SGD(net.parameters(), 0.1)
            step = 0
            if os.path.exists("last.pt"):
                kept = torch.load("last.pt")
                net.load_state_dict(kept["net"]); step = kept["step"]
            while step < 6:
                opt.zero_grad(); net(torch.full((3, 4), step / 6)).square().mean().backward()
                opt.step(); step += 1
                torch.save({"net": net.state_dict(), "step": step}, "new.pt")
                os.replace("new.pt", "last.pt")
            code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
            subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
            """
        )
    )
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "spotchaos", "run", "--no-cache"),
            *("--kill-at", "step-end:3", "--json", "r.json"),
            *("--", sys.executable, "train.py"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    notes = {note["name"]: note["message"] for note in report["baseline"]["notes"]}
    assert "time.sleep(600)" in notes["lives-on"]
    assert "lived on" in ended.stdout
