"""The command end to end: what a person types, what they read, and what is left behind."""

import json
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import spotchaos

pytestmark = pytest.mark.timeout(900)

SCHEMA = Path(spotchaos.__file__).parent / "report" / "schema1.json"
AT = ("--kill-at", "step-end:6")


def report(place, name="r.json"):
    """Return a JSON report, which must follow the published schema."""
    document = json.loads((place.beside / name).read_text())
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    return document


# ------------------------------------------------------------------- the main job


@pytest.mark.ddp
def test_with_no_program_the_reference_trainer_is_tried_and_held(place):
    result = place.spotchaos(
        "run", "--kill-at", "random", "--json", f"{place.beside}/r.json"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "HELD" in result.stdout
    document = report(place)
    assert document["verdict"] == "held"
    assert document["holds_up_to"] == "bitwise"
    assert document["baseline"]["world_size"] == 2
    assert len(document["trials"]) == 5
    assert document["findings"] == []


def test_a_violated_promise_is_status_1_and_its_token_replays_it(trainer):
    command = ("python", "train.py", "--forget-rng")
    result = trainer.spotchaos(
        "run", *AT, "--json", f"{trainer.beside}/r.json", "--", *command
    )
    assert result.returncode == 1, result.stdout + result.stderr
    document = report(trainer)
    (trial,) = document["trials"]
    assert [f["name"] for f in trial["findings"]] == ["rng-not-restored"]
    restored = trial["attempts"][1]["restored"]["0"]
    assert (restored["weights"], restored["rng.torch"]) == (4, "fresh")
    assert trial["attempts"][1]["divergence"]["step"] == 5
    # The screen: verdict first, the finding, and how to see it again.
    lines = result.stdout[result.stdout.index("VIOLATED") :]
    assert "rng-not-restored" in lines
    assert trial["replay"] in re.sub(r"\s", "", lines)

    again = trainer.spotchaos(
        "replay",
        trial["replay"],
        *("--json", f"{trainer.beside}/again.json"),
        "--",
        *command,
    )
    assert again.returncode == 1, again.stdout + again.stderr
    (replayed,) = report(trainer, "again.json")["trials"]
    assert replayed["plan"] == trial["plan"]
    assert replayed["findings"] == trial["findings"]


def test_two_campaigns_side_by_side_do_not_meet(trainer):
    before = trainer.contents(trainer.folder)
    both = [trainer.start("run", *AT, "--", "python", "train.py") for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=800)
        assert process.returncode == 0, out + err
    assert trainer.contents(trainer.folder) == before
    assert trainer.alive() == []


# ------------------------------------------------- programs as people have them


def test_writes_elsewhere_daemons_and_a_huge_folder_do_no_harm(place):
    elsewhere = place.beside / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "last.pt.old").write_text("mine")
    daemon = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execv(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(9999)"])
os.wait()
"""
    place.write(daemon + place.TRAINER)
    with (place.folder / "dataset.bin").open("wb") as file:
        file.truncate(40 << 30)
    before = place.contents(elsewhere)
    result = place.spotchaos(
        "run", *AT, "--", "python", "train.py", "--out", str(elsewhere)
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert place.contents(elsewhere) == before


def test_a_module_that_needs_a_terminal_and_writes_to_out_is_held(place):
    place.write("", "job/__init__.py")
    needs = "import subprocess\nprint(subprocess.check_output(['stty', 'size']))\n"
    place.write(needs + place.TRAINER, "job/__main__.py")
    result = place.spotchaos("run", *AT, "--", "python", "-m", "job", "--out", "{out}")
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_script_of_another_environment_and_its_old_checkpoints(place):
    venv = place.beside / "venv"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True
    )
    (site,) = venv.glob("lib/python*/site-packages")
    torch = next(p for p in sys.path if (Path(p) / "torch" / "__init__.py").exists())
    (site / "torch.pth").write_text(torch + "\n")
    script = venv / "bin" / "train-it"
    script.write_text(f"#!{venv}/bin/python\n{place.TRAINER}")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    # A run of last week, which ended: a first try starts where it stopped.
    subprocess.run([str(script)], cwd=place.folder, check=True)
    assert (place.folder / "last.pt").exists()

    result = place.spotchaos(
        "run", *AT, "--json", f"{place.beside}/r.json", "--", str(script)
    )
    assert result.returncode == 0, result.stdout + result.stderr
    document = report(place)
    assert document["baseline"]["steps"] == 12
    assert "existing-hidden" in [note["name"] for note in document["notes"]]
    assert "last.pt" in result.stdout


# ------------------------------------------------------------- ended from outside


def events(path):
    return path.read_text().count("\n") if path.exists() else 0


def begin(place, reached):
    """Start a long campaign and return once it has told `reached` events."""
    log = place.beside / "events.jsonl"
    process = place.start(
        *("run", "--kill-at", "every-step", "--jsonl", str(log)),
        *("--", "python", "train.py"),
        start_new_session=True,
        # What a shell starts in the background ignores it, and so would we.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    place.until(lambda: events(log) >= reached or process.poll() is not None)
    assert process.poll() is None
    return process


def test_ctrl_c_ends_everything_and_says_what_was_done(trainer):
    before = trainer.contents(trainer.folder)
    process = begin(trainer, 4)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=800)
    assert process.returncode == 3, out + err
    assert "interrupted" in out
    assert "Traceback" not in err
    assert trainer.alive() == []
    assert trainer.contents(trainer.folder) == before
    assert not list((trainer.beside / "tmp").iterdir())


@pytest.mark.parametrize("seed", [1, 2, 3], ids=str)
def test_killed_at_any_moment_it_leaves_no_process_and_no_change(trainer, seed):
    before = trainer.contents(trainer.folder)
    chance = random.Random(seed)
    process = begin(trainer, chance.randrange(1, 12))
    # Somewhere within the phase that has begun.
    try:
        process.wait(timeout=chance.uniform(0.0, 2.0))
    except subprocess.TimeoutExpired:
        process.kill()
    process.communicate(timeout=800)
    trainer.until(lambda: trainer.alive() == [], bound_s=60)
    assert trainer.contents(trainer.folder) == before


# --------------------------------------------------------------------- bad input

USAGE = {
    "option": (["run", "--kil-at", "random", "--", "python", "train.py"], "--kill-at"),
    "site": (
        ["run", "--kill-at", "step-edn:3", "--", "python", "train.py"],
        "step-end",
    ),
    "command": (["run", "--", "pyhton", "train.py"], "pyhton"),
    "script": (["run", "--", "python", "trian.py"], "train.py"),
    "no-file": (["report", "nothing.json"], "nothing.json"),
    "no-token": (["replay", "sc1:AAAA"], "token"),
}


@pytest.mark.parametrize("name", USAGE)
def test_a_slip_is_one_sentence_with_a_hint(trainer, name):
    args, said = USAGE[name]
    result = trainer.spotchaos(*args)
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("spotchaos: ")
    assert "\nHint: " in result.stderr
    assert said in result.stderr


FAILING = {
    "fails": (
        "print('loading data')\nraise RuntimeError('no data today')",
        ["python", "train.py"],
        ["status 1", "no data today", "without spotchaos"],
    ),
    "never-ends": (
        "import time\nprint('waiting', flush=True)\nwhile True:\n    time.sleep(1)",
        ["python", "train.py"],
        ["had not ended after", "waiting", "train.py", "--timeout"],
    ),
    "no-torch": ("print('hello')", ["python", "train.py"], ["not-observed"]),
    "isolated": ("print('hello')", ["python", "-I", "train.py"], ["not-observed"]),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_program_that_cannot_be_judged_is_unknown_and_says_why(place, name):
    source, command, said = FAILING[name]
    place.write(source)
    limit = ["--timeout", "20"] if name == "never-ends" else []
    result = place.spotchaos(
        "run", *limit, "--json", f"{place.beside}/r.json", "--", *command
    )
    assert result.returncode == 3, result.stdout + result.stderr
    assert "UNKNOWN" in result.stdout
    assert all(words in result.stdout for words in said), result.stdout
    assert report(place)["verdict"] == "unknown"


def test_a_plan_beyond_the_horizon_names_the_last_step(trainer):
    result = trainer.spotchaos(
        "run", "--kill-at", "step-end:13", "--", "python", "train.py"
    )
    assert result.returncode == 2, result.stdout + result.stderr
    assert "12" in result.stderr
    assert "\nHint: " in result.stderr


def mounting(script):
    """Return what runs a command after `script`, with mounts that nobody else sees."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can make the mounts of this test")
    unshared = ["unshare", "--mount", "--propagation", "private"]
    if subprocess.run([*unshared, "true"], check=False).returncode:
        pytest.skip("mount namespaces are refused here")
    return [*unshared, "sh", "-c", f'{script} && exec "$@"', "sh"]


def test_a_read_only_folder_is_no_obstacle(trainer):
    bind = f"mount --bind {trainer.folder} {trainer.folder}"
    again = f"mount -o remount,bind,ro {trainer.folder} && cd {trainer.folder}"
    result = trainer.spotchaos(
        *("run", *AT, "--", "python", "train.py"),
        before=mounting(f"{bind} && {again}"),
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_full_disk_under_our_own_folder_is_one_clear_sentence(trainer):
    small = f"mount -t tmpfs -o size=1m tmpfs {trainer.beside}/tmp"
    result = trainer.spotchaos(
        *("run", *AT, "--", "python", "train.py"), before=mounting(small)
    )
    assert result.returncode == 3, result.stdout + result.stderr
    said = result.stdout + result.stderr
    assert "MB are left on the disk" in said
    assert "TMPDIR" in said
