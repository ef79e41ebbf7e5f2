"""A script of several phases: compiled, played on each wire, and told on the command line."""

from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from spotchaos.cli.imds import command
from spotchaos.cli.imds_script import cue, script
from spotchaos.clock import ManualClock
from spotchaos.errors import UsageError
from spotchaos.providers.notice import Phase, latest, reclaim_at
from spotchaos.providers.scripts import scripted
from spotchaos.providers.service import NoticeService

START = datetime(2026, 1, 1, tzinfo=UTC)
ACTION = "/latest/meta-data/spot/instance-action"
ADVICE = "/latest/meta-data/events/recommendations/rebalance"
SCRIPT = (
    "5s aws-rebalance",
    "20s aws",
    "30s withdraw",
    "60s aws-stop grace 100s",
    "70s token-revoked",
    "80s 503 for 10s",
    "100s 429:2",
)


def told(*phases, provider="aws"):
    return scripted(provider, [cue(phase) for phase in phases])


def go_to(wire, second):
    """Move the clock to a second of the script."""
    wire.clock.sleep(
        (START + timedelta(seconds=second) - wire.clock.now()).total_seconds()
    )
    wire.service.look_again()


# ------------------------------------------------------------- the state machine


@pytest.mark.parametrize(
    ("second", "phase", "kind"),
    [
        pytest.param(4.9, Phase.SILENT, None, id="silent"),
        pytest.param(5, Phase.ANNOUNCED, "rebalance", id="advice"),
        pytest.param(20, Phase.ANNOUNCED, "terminate", id="notice"),
        pytest.param(30, Phase.WITHDRAWN, "terminate", id="withdrawn"),
        pytest.param(59.9, Phase.WITHDRAWN, "terminate", id="still"),
        pytest.param(60, Phase.ANNOUNCED, "stop", id="again"),
        pytest.param(159.9, Phase.ANNOUNCED, "stop", id="to-the-end"),
        pytest.param(160, Phase.GONE, "stop", id="gone"),
    ],
)
def test_a_script_is_a_story_whose_moments_are_fixed(second, phase, kind):
    notices = told(*SCRIPT).begin(START)
    now = START + timedelta(seconds=second)
    newest = latest(notices, now)
    assert (newest and newest.kind) == kind
    assert (Phase.SILENT if newest is None else newest.phase(now)) == phase
    assert reclaim_at(notices) == START + timedelta(seconds=160)


def test_cloud_seconds_are_compressed_all_alike():
    notices = told(*SCRIPT).begin(START, time_scale=10)
    assert reclaim_at(notices) == START + timedelta(seconds=16)
    assert [n.announced_at for n in notices] == [
        START + timedelta(seconds=s) for s in (0.5, 2, 6)
    ]


def test_phases_may_be_told_in_any_order():
    assert told(*reversed(SCRIPT)).acts == told(*SCRIPT).acts


# ------------------------------------------------------------- on the wires


def test_a_script_plays_alike_on_each_wire(play):
    wire = play(told(*SCRIPT))

    def asked(second, path=ACTION, **headers):
        go_to(wire, second)
        return wire.get(path, **headers)

    assert asked(4).status_code == asked(4, ADVICE).status_code == 404
    assert asked(5, ADVICE).status_code == 200
    assert asked(5).status_code == 404
    assert asked(20).json() == {"action": "terminate", "time": "2026-01-01T00:02:20Z"}
    assert asked(30).status_code == asked(30, ADVICE).status_code == 404
    assert asked(60).json() == {"action": "stop", "time": "2026-01-01T00:02:40Z"}
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "600"}
    token = wire.ask("PUT", "/latest/api/token", **ttl).text
    assert asked(69, X_aws_ec2_metadata_token=token).status_code == 200
    go_to(wire, 70)
    again = wire.ask("PUT", "/latest/api/token", **ttl).text
    assert asked(70, X_aws_ec2_metadata_token=token).status_code == 401
    assert asked(70, X_aws_ec2_metadata_token=again).status_code == 200
    statuses = [asked(s).status_code for s in (79, 80, 85, 89, 90)]
    assert statuses == [200, 503, 503, 503, 200]
    assert [asked(s).status_code for s in (99, 100, 100, 100)] == [200, 200, 429, 200]


def test_the_faults_of_a_script_are_compressed_with_it(play):
    wire = play(told("10s 503 for 10s", "100s aws"), time_scale=10)
    found = []
    for second in (0.9, 1.0, 1.9, 2.0):
        go_to(wire, second)
        found.append(wire.get(ACTION).status_code)
    assert found == [404, 503, 503, 404]


def test_a_notice_of_azure_goes_and_comes_again(play):
    wire = play(
        told("10s azure", "20s withdraw", "40s azure-redeploy", provider="azure")
    )
    path = "/metadata/scheduledevents?api-version=2020-07-01"
    found = []
    for second in (9, 10, 20, 40):
        go_to(wire, second)
        answer = wire.get(path, Metadata="true").json()
        kinds = [event["EventType"] for event in answer["Events"]]
        found.append((answer["DocumentIncarnation"], kinds))
    incarnations = [number for number, _ in found]
    assert [kinds for _, kinds in found] == [[], ["Preempt"], [], ["Redeploy"]]
    assert incarnations == sorted(set(incarnations))


def test_a_reset_takes_the_faults_of_a_script_along(play):
    wire = play(told("0s 503:1+"))
    assert wire.get(ACTION).status_code == 503
    wire.service.reset()
    assert wire.get(ACTION).status_code == 404
    wire.service.announce()
    assert wire.get(ACTION).status_code == 503


# ------------------------------------------------------------- what makes no sense


@pytest.mark.parametrize(
    ("phases", "message", "hint"),
    [
        pytest.param(
            ["5s aws-rebalace"],
            "unknown notice or fault 'aws-rebalace' in the phase '5s aws-rebalace'",
            "did you mean 'aws-rebalance'?",
            id="near-miss",
        ),
        pytest.param(
            ["5s witdraw"],
            "unknown notice or fault 'witdraw' in the phase '5s witdraw'",
            "did you mean 'withdraw'?",
            id="near-withdraw",
        ),
        pytest.param(
            ["5s token-revokd"],
            "unknown notice or fault 'token-revokd' in the phase '5s token-revokd'",
            "did you mean 'token-revoked'?",
            id="near-fault",
        ),
        pytest.param(
            ["aws"],
            "the phase 'aws' does not say when and what",
            "'20s aws'",
            id="no-time",
        ),
        pytest.param(
            ["soon aws"],
            "'soon' in the phase 'soon aws' is no number of seconds",
            "10s",
            id="no-number",
        ),
        pytest.param(
            ["-1 aws"],
            "impossible moment of -1.0 s",
            "0 or more",
            id="before-the-start",
        ),
        pytest.param(
            ["5 aws grce 60"],
            "'grce' says nothing in the phase '5 aws grce 60'",
            "did you mean 'grace'?",
            id="near-word",
        ),
        pytest.param(
            ["5 aws for 60"],
            "'for' says nothing of 'aws' in the phase '5 aws for 60'",
            "'for' is of faults",
            id="a-notice-that-lasts",
        ),
        pytest.param(
            ["5 503 grace 60"],
            "'grace' says nothing of '503' in the phase '5 503 grace 60'",
            "'grace' of notices",
            id="a-fault-with-grace",
        ),
        pytest.param(
            ["5 withdraw"],
            "at the phase '5 withdraw' no notice is in force",
            "announce one",
            id="nothing-to-withdraw",
        ),
        pytest.param(
            ["5 aws", "10 aws"],
            "at the phase '10 aws' the notice 'terminate' of 5 s is still in force",
            "withdraw it before",
            id="twice",
        ),
        pytest.param(
            ["5 aws", "126 aws-rebalance"],
            "the phase '126 aws-rebalance' comes after the machine is gone, at 125 s",
            "earlier",
            id="too-late",
        ),
        pytest.param(
            ["5 azure"],
            "'azure' in the phase '5 azure' is a notice of azure, and aws is served",
            "--provider azure",
            id="another-cloud",
        ),
        pytest.param(
            ["5 aws-429"],
            "'aws-429' in the phase '5 aws-429' is a notice and a fault in one",
            "a phase of its own",
            id="two-in-one",
        ),
        pytest.param(
            ["5 token-revoked for 10"],
            "the phase '5 token-revoked for 10' does not last",
            "leave out 'for ...'",
            id="a-moment-that-lasts",
        ),
        pytest.param(
            ["5 429:0"],
            "fault '429:0' has no count '0'",
            "counts begin at 1",
            id="no-count",
        ),
    ],
)
def test_a_script_that_makes_no_sense_is_refused(phases, message, hint):
    with pytest.raises(UsageError) as caught:
        told(*phases)
    assert caught.value.message.startswith(message)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("phase", "provider", "message"),
    [
        ("5 token-revoked", "azure", "about tokens, and azure has none"),
        ("5 hop-limit", "gcp", "about tokens, and gcp has none"),
    ],
)
def test_what_fits_no_service_of_that_provider_is_refused(phase, provider, message):
    with pytest.raises(UsageError, match=message):
        told(phase, provider=provider)


# ------------------------------------------------------------- files and the command


def test_a_file_says_the_same_as_options(tmp_path):
    path = tmp_path / "phases.toml"
    path.write_text(
        'summary = "advice, then a notice"\n'
        'provider = "aws"\ntime-scale = 10\nphases = ["5s aws-rebalance", "20s aws"]\n'
    )
    read = script(path)
    assert read.cues == (cue("5s aws-rebalance"), cue("20s aws"))
    assert (read.provider, read.time_scale) == ("aws", 10)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("phase = []", "unknown key 'phase' in", "did you mean 'phases'?"),
        ("", "has no phases", 'phases = ["20s aws"'),
        ("phases = [20]", "'phases' in", "it wants texts"),
        (
            'phases = ["1 aws"]\ntime-scale = "x"',
            "'time-scale' in",
            "it wants a number",
        ),
        ('phases = ["1 aws"]\nprovider = 1', "'provider' in", "it wants a text"),
        ("phases = [", "is no TOML", ""),
        (None, "No such file", ""),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path, text, message, hint):
    path = tmp_path / "phases.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        script(path)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--phase", "5s aws"], "no provider is named"),
        (
            ["--provider", "aws", "--phase", "5 aws", "--grace", "9"],
            "--grace does not go with phases",
        ),
        (
            ["--provider", "aws", "--phase", "5 aws", "--action", "stop"],
            "--action does not go with phases",
        ),
        (
            ["--provider", "aws-early", "--phase", "5 aws"],
            "'aws-early' is a notice, and phases are given",
        ),
        (["--provider", "nebius", "--phase", "5 nebius"], "no metadata service"),
    ],
)
def test_options_that_contradict_each_other_are_refused(arguments, message):
    found = CliRunner().invoke(command, arguments)
    assert isinstance(found.exception, UsageError)
    assert message in found.exception.message


def test_the_moment_of_a_script_is_one_of_the_injected_clock():
    clock = ManualClock(datetime(2030, 5, 1, tzinfo=UTC))
    service = NoticeService(told("5s aws"), clock=clock)
    (notice,) = service.announce()
    assert notice.announced_at == datetime(2030, 5, 1, 0, 0, 5, tzinfo=UTC)
