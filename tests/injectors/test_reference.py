"""The reference trainer is held under everything that is wired here."""

import contextlib
import dataclasses
import sys

import pytest

from spotchaos.campaign.baseline import prepare_baseline
from spotchaos.campaign.campaign import run
from spotchaos.clock import SystemClock
from spotchaos.config.settings import Settings
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.isolation.workspace import Workspace
from spotchaos.model import Verdict

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@contextlib.contextmanager
def on_ground(folder, *options, **given):
    """Yield a function that runs one campaign on the reference trainer, one rank."""
    always = ("--ranks", "1", "--steps", "30", "--save-every", "5", "--batch", "2")
    command = (sys.executable, "-m", "spotchaos.training", *always, *options)
    first = Settings(command=command, folder=folder, **given)
    with Workspace(folder) as workspace:
        program = Program.from_settings(first)
        baseline_context = prepare_baseline(
            first, program, workspace, lambda event: None, clock=SystemClock()
        )

        def reference(**more):
            settings = dataclasses.replace(first, **{"notice": None, **more})
            return run(settings, lambda event: None, layer=lambda *_: baseline_context)

        yield reference
        if baseline_context.trial_context.zygote is not None:
            baseline_context.trial_context.zygote.close()


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    with on_ground(tmp_path_factory.mktemp("reference"), notice="aws") as reference:
        yield reference


@pytest.fixture(scope="module", params=["s3", "gs"])
def storing(request, tmp_path_factory):
    """The same, saving to an object store that alone outlives the machine."""
    if request.param == "gs":
        pytest.importorskip("gcp_storage_emulator")
        pytest.importorskip("google.cloud.storage")
    url = f"{request.param}://bucket/run"
    folder = tmp_path_factory.mktemp(request.param)
    with on_ground(folder, "--store", url, durable=url, lose="machine") as reference:
        yield request.param, reference


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"signal": "TERM"}, id="term"),
        pytest.param({"signal": "STOP"}, id="stop"),
        *(
            pytest.param({"signal": name}, id=name.lower())
            for name in ("INT", "HUP", "USR1", "USR2")
        ),
        *(
            pytest.param({"signal": name, "to": target}, id=f"{name}-{target}".lower())
            for name in ("KILL", "TERM", "STOP")
            for target in ("leader", "group", "rank:0")
        ),
        *(
            pytest.param({"signal": "TERM", "then": (then,)}, id=f"term-{then}")
            for then in (
                "TERM@0s",
                "TERM@save-begin",
                "INT@write:1",
                "TERM@rename",
                "KILL@save-begin",
                "KILL@write:2/half",
                "KILL@rename",
            )
        ),
        pytest.param({"notice": "aws", "then": ("TERM@save-begin",)}, id="aws-term"),
        pytest.param({"notice": "aws", "time_scale": 6}, id="notice-aws"),
        pytest.param({"lose": "machine", "move": True}, id="machine"),
        pytest.param({"fault": ("enospc:last",)}, id="no-space"),
        pytest.param({"fault": ("eio:9",)}, id="input-output"),
        pytest.param({"fault": ("rename-refused:last",)}, id="rename"),
        pytest.param({"fault": ("bit-flip",)}, id="bit-flip"),
        pytest.param({"fault": ("zero-page",)}, id="zero-page"),
        pytest.param({"fault": ("fsync-fails:last",)}, id="sync"),
        pytest.param({"fault": ("clock-skew",)}, id="skew"),
        pytest.param({"fault": ("equal-times",)}, id="equal-times"),
        pytest.param({"fault": ("lost-times",)}, id="lost-times"),
    ],
)
def test_the_reference_trainer_is_held(reference, given):
    if "fault" not in given:
        given = {**given, "kill_at": ("step-end:12",)}
    demand_held(reference(**given))


@pytest.mark.parametrize(
    "fault",
    [
        "503:3",
        "500:6",
        "403:5",
        "expired-token:last",
        "clock-skew:4",
        "cut:2",
        "slow:3",
        "503:4+",
        "lost-complete:2",
        "lost-complete:last",
        "lagging-list:1+",
    ],
)
def test_the_reference_trainer_is_held_on_a_store_that_fails(storing, fault):
    kind, reference = storing
    demand_held(reference(fault=(f"{kind}-{fault}",)))


def test_the_reference_trainer_takes_half_an_answer_for_what_it_is(storing):
    kind, reference = storing
    outcome = reference(fault=(f"{kind}-truncated-get",))
    demand_held(outcome)
    ((trial, _),) = outcome.trials
    assert sum(one.times for a in trial.attempts for one in a.injected) == 1


@pytest.fixture(scope="module")
def in_parts(tmp_path_factory, request):
    """The same with checkpoints so large that the store takes them in parts."""
    kind = request.param
    if kind == "gs":
        pytest.importorskip("gcp_storage_emulator")
    url = f"{kind}://bucket/run"
    folder = tmp_path_factory.mktemp(f"{kind}-parts")
    options = ("--store", url, "--size", "256", "--steps", "12")
    with on_ground(folder, *options, durable=url, lose="machine") as reference:
        yield kind, reference


@pytest.mark.parametrize("in_parts", ["s3", "gs"], indirect=True)
@pytest.mark.parametrize("fault", ["error-body", "lost-complete", "error-body:last"])
def test_the_reference_trainer_is_held_when_its_upload_in_parts_is_not(in_parts, fault):
    kind, reference = in_parts
    outcome = reference(fault=(f"{kind}-{fault}",))
    demand_held(outcome)
    ((trial, _),) = outcome.trials
    assert sum(one.times for a in trial.attempts for one in a.injected)


def test_a_fault_of_a_store_that_never_struck_proves_nothing(storing):
    kind, reference = storing
    outcome = reference(fault=(f"{kind}-error-body",))
    ((_, judgement),) = outcome.trials
    assert [f.name for f in judgement.findings] == ["not-reached"]
    assert outcome.verdict is Verdict.UNKNOWN


def demand_held(outcome):
    found = [f"{f.name}: {f.message}" for _, j in outcome.trials for f in j.findings]
    assert outcome.trouble is None
    assert found == []
    assert outcome.verdict is Verdict.HELD
