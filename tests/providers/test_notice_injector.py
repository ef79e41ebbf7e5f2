"""A notice is armed, fired and disarmed around one attempt."""

import threading

import pytest
import requests

from spotchaos.clock import ManualClock
from spotchaos.errors import HarnessError
from spotchaos.injectors.notices import FILE_VARIABLE, NoticeInjector
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


def test_a_provider_that_signals_sends_its_signal(tmp_path):
    sent, got_one = [], threading.Event()

    def send(name):
        sent.append(name)
        got_one.set()

    injector = NoticeInjector(story("kubernetes"), send=send, clock=ManualClock())
    assert injector.arm(tmp_path) == {}
    injector.fire()
    assert got_one.wait(10)
    injector.disarm()
    assert sent == ["TERM"]


def test_a_provider_that_writes_a_file_writes_it(tmp_path):
    injector = NoticeInjector(story("metaflow"))
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
    injector.fire()
    assert appeared.wait(10)
    watcher.join()
    injector.disarm()


def test_what_is_not_armed_cannot_fire():
    with pytest.raises(HarnessError, match="not armed"):
        NoticeInjector(story("aws")).fire()
