"""A notice is armed, fired and disarmed around one attempt."""

import threading

import pytest
import requests

from spotchaos.clock import ManualClock
from spotchaos.errors import HarnessError, UsageError
from spotchaos.injectors.notices import FILE_VARIABLE, NoticeInjector
from spotchaos.providers.profiles import profile
from spotchaos.providers.stories import story


def test_the_deadline_is_fixed_when_it_fires_and_enforced(tmp_path):
    clock = ManualClock()
    injector = NoticeInjector(story("aws"), clock=clock, time_scale=60)
    environment = injector.arm(tmp_path)
    url = environment["AWS_EC2_METADATA_SERVICE_ENDPOINT"]
    path = "/latest/meta-data/spot/instance-action"
    assert requests.get(url + path, timeout=5).status_code == 404
    (notice,) = injector.fire()
    assert (notice.deadline - notice.announced_at).total_seconds() == 2
    assert requests.get(url + path, timeout=5).status_code == 200
    assert not injector.wait_for_reclaim(at_most_s=0)
    clock.advance(2)
    assert injector.wait_for_reclaim(at_most_s=0)
    assert [entry.status for entry in injector.log] == [404, 200]
    injector.disarm()
    injector.disarm()
    with pytest.raises(requests.ConnectionError):
        requests.get(url + path, timeout=5)


# contracts: who has no metadata service, with the notice in seconds.
BY_SIGNAL = {
    "gke": 15,
    "nebius": 60,
    "yandex": 30,
    "coreweave": 420,
    "runpod": 5,
    "kubernetes": 30,
    "slurm": 90,  # set by the site
}
BY_FILE = {"oracle": 120, "metaflow": 120}
IN_SILENCE = ("vast", "verda", "salad")


@pytest.mark.parametrize(("name", "lasts_s"), BY_SIGNAL.items())
def test_a_provider_that_signals_sends_its_signal(tmp_path, name, lasts_s):
    sent, got_one = [], threading.Event()

    def send(name):
        sent.append(name)
        got_one.set()

    clock = ManualClock()
    grace_s = lasts_s if name == "slurm" else None
    injector = NoticeInjector(story(name, grace_s=grace_s), send=send, clock=clock)
    assert injector.arm(tmp_path) == {}
    injector.fire()
    assert got_one.wait(10)
    clock.advance(lasts_s - 1)
    assert not injector.wait_for_reclaim(at_most_s=0)
    clock.advance(1)
    assert injector.wait_for_reclaim(at_most_s=0)
    injector.disarm()
    assert sent == ["TERM"]


@pytest.mark.parametrize("name", IN_SILENCE)
def test_a_provider_without_a_notice_just_takes_the_machine(tmp_path, name):
    sent = []
    injector = NoticeInjector(story(name), send=sent.append, clock=ManualClock())
    assert injector.arm(tmp_path) == {}
    injector.fire()
    assert injector.wait_for_reclaim(at_most_s=0)
    injector.disarm()
    assert sent == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["lambda", "hetzner"])
def test_a_provider_without_spot_machines_has_no_story(name):
    assert profile(name).notice == "none"
    with pytest.raises(UsageError, match="unknown provider or notice"):
        story(name)


@pytest.mark.parametrize(("name", "lasts_s"), BY_FILE.items())
def test_a_provider_that_writes_a_file_writes_it(tmp_path, name, lasts_s):
    injector = NoticeInjector(story(name))
    folder = tmp_path / "notice"
    assert injector.arm(tmp_path)[FILE_VARIABLE] == str(folder)
    appeared = threading.Event()

    def look():
        while not (folder / "spot-termination-notice").exists():
            if appeared.wait(0.01):
                return
        appeared.set()

    watcher = threading.Thread(target=look)
    watcher.start()
    (notice,) = injector.fire()
    assert (notice.reclaim_at - notice.announced_at).total_seconds() == lasts_s
    assert appeared.wait(60)
    watcher.join()
    injector.disarm()


def test_what_is_not_armed_cannot_fire():
    with pytest.raises(HarnessError, match="not armed"):
        NoticeInjector(story("aws")).fire()
