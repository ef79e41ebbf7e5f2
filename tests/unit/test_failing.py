"""Why a program is no baseline: its own failure, or what attempts are kept from."""

from __future__ import annotations

import pytest

from spotchaos.campaign.baseline_failures import failure_of
from spotchaos.model import Attempt, AttemptTrace, Ended


def failed(said, *, ended=Ended.FAILED, command=("python", "train.py")):
    return Attempt(
        number=1,
        command=command,
        ended=ended,
        exit_code=1,
        trace=AttemptTrace(ranks={}, world_size=1, processes=1, torch_seen=True),
        wall_s=1.0,
        output_tail=said,
    )


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        (
            (
                "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name"
                " resolution>"
            ),
            "--allow-network",
        ),
        ("OSError: [Errno 101] Network is unreachable", "--allow-network"),
        (
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
            "--allow-network",
        ),
        (
            "botocore.exceptions.NoCredentialsError: Unable to locate credentials",
            "--durable s3://",
        ),
        (
            (
                'sudo: The "no new privileges" flag is set, which prevents sudo from running'
                " as root."
            ),
            "sudo",
        ),
        ("KeyError: 'rate'", "without spotchaos first"),
        ("ValueError: connect the encoder first", "without spotchaos first"),
    ],
)
def test_what_an_attempt_is_kept_from_is_told_from_a_failure_of_its_own(said, hint):
    finding = failure_of(failed(said), 60.0, allow_network=False)
    assert finding.name == "baseline-failed"
    assert said in finding.message
    assert hint in finding.hint


def test_who_may_reach_the_network_is_not_told_to_allow_it():
    finding = failure_of(
        failed("OSError: Network is unreachable"), 60.0, allow_network=True
    )
    assert "allow-network" not in finding.hint


def test_a_program_that_waits_for_the_network_is_told_so():
    waiting = failed("Retrying: Max retries exceeded with url", ended=Ended.HUNG)
    finding = failure_of(waiting, 60.0, allow_network=False)
    assert "had not ended after 60 s" in finding.message
    assert "--allow-network" in finding.hint


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--kill-at", "step-end:3"), "--kill-at, stand before the command"),
        (("--lr", "0.1"), "without spotchaos first"),
    ],
)
def test_an_option_of_ours_behind_the_command_is_noticed(words, hint):
    said = "train.py: error: unrecognized arguments: " + " ".join(words)
    attempt = failed(said, command=("python", "train.py", *words))
    assert hint in failure_of(attempt, 60.0, allow_network=False).hint


def test_a_script_that_its_own_workers_run_anew_is_told_where_to_begin():
    said = (
        "RuntimeError: An attempt has been made to start a new process before the\n"
        "        current process has finished its bootstrapping phase.\n"
        "RuntimeError: DataLoader worker (pid(s) 13) exited unexpectedly"
    )
    finding = failure_of(failed(said), 60.0, allow_network=False)
    assert "__main__" in finding.hint
    other = failed("RuntimeError: DataLoader worker (pid(s) 13) exited unexpectedly")
    assert "__main__" not in failure_of(other, 60.0, allow_network=False).hint


def test_a_program_that_a_silent_service_ends_is_told_so():
    finding = failure_of(failed("bye"), 60.0, allow_network=False, notice="aws-early")
    assert "what the service of aws-early answers while there" in finding.hint
    assert "service" not in failure_of(failed("bye"), 60.0, allow_network=False).hint


@pytest.mark.parametrize(
    "said",
    [
        "KeyError: 'WANDB_API_KEY'",
        "train.sh: line 3: WANDB_API_KEY: parameter not set",
        "ValueError: set $WANDB_API_KEY first",
    ],
)
def test_a_variable_that_we_removed_is_our_doing(said):
    removed = ["HF_TOKEN", "WANDB_API_KEY"]
    finding = failure_of(failed(said), 60.0, allow_network=False, removed=removed)
    assert "spotchaos took WANDB_API_KEY away" in finding.hint
    assert "--keep-env WANDB_API_KEY" in finding.hint


def test_another_failure_names_what_attempts_do_not_have():
    said = "KeyError: 'MY_WANDB_API_KEY_2'"
    removed = ["HF_TOKEN", "WANDB_API_KEY"]
    finding = failure_of(failed(said), 60.0, allow_network=False, removed=removed)
    assert "without spotchaos first" in finding.hint
    assert "do not have HF_TOKEN, WANDB_API_KEY (--keep-env)" in finding.hint
