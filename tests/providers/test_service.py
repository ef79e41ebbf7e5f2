"""What is wrong with a service itself, and what every wire has in common."""

import fcntl
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
import requests

from spotchaos.clock import ManualClock
from spotchaos.errors import UsageError
from spotchaos.providers import PROVIDERS
from spotchaos.providers.loopback import is_connected
from spotchaos.providers.service import NoticeService
from spotchaos.providers.service_faults import SERVICE_FAULTS, ServiceFault
from spotchaos.providers.serving import by_signal, in_process, on_files, on_loopback
from spotchaos.providers.stories import story

ACTION = "/latest/meta-data/spot/instance-action"
TTL = "X-aws-ec2-metadata-token-ttl-seconds"
HTTP = ["aws", "aws-stop", "gcp", "azure", "alibaba", "aws-late", "aws-withdrawn"]


def from_files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        # A file is written beside its name and renamed, by a thread of its own.
        if path.is_file() and not path.name.endswith(".partial")
    }


def over_http(service, base_url):
    """Ask for each document of the provider; return those that are there."""
    found = {}
    documents = PROVIDERS[service.story.provider]().documents(service.clock.now())
    for name, request in documents.items():
        answer = requests.get(
            f"{base_url}/{name}",
            params=request.query,
            headers=request.headers,
            timeout=5,
        )
        assert answer.status_code in {200, 404}
        if answer.status_code == 200:
            found[name] = answer.content
    return found


def until(is_true, *, attempts=2_000):
    for _ in range(attempts):
        if is_true():
            return True
        time.sleep(0.005)  # noqa: TID251 - bounded poll of other threads
    return False


@pytest.mark.parametrize("name", HTTP)
def test_all_wires_say_the_same_at_every_moment(name, tmp_path):
    clock = ManualClock()
    services = [NoticeService(story(name), clock=clock) for _ in range(3)]
    seen = []
    with (
        on_loopback(services[0]) as loopback,
        on_files(services[1], tmp_path) as files,
        in_process(services[2]) as link_local,
    ):
        for step_s in (None, 0, 5, 25, 30, 60, 200):
            if step_s == 0:
                for service in services:
                    service.announce()
            clock.advance(step_s or 0)
            files.sync()
            http = over_http(services[0], loopback)
            assert over_http(services[2], link_local) == http
            assert from_files(tmp_path) == http
            seen.append(http)
    assert any(http != seen[0] for http in seen), "the notice was never seen"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("nebius", ["TERM"], id="once"),
        pytest.param("nebius-duplicated", ["TERM", "TERM"], id="twice"),
        pytest.param("nebius-missing", [], id="never"),
        pytest.param("nebius-withdrawn", ["TERM"], id="cannot-be-taken-back"),
    ],
)
def test_a_notice_by_signal_comes_when_it_can_be_read(name, expected):
    clock, sent, got_one = ManualClock(), [], threading.Event()

    def send(signal_name):
        sent.append(signal_name)
        got_one.set()

    service = NoticeService(story(name), clock=clock)
    with by_signal(service, send):
        assert sent == []
        service.announce()
        if expected:
            assert got_one.wait(10)
        for _ in range(6):
            clock.advance(10)
            service.look_again()
            until(lambda: len(sent) == len(expected), attempts=20)
        assert until(lambda: sent == expected)
    assert sent == expected


def test_a_late_signal_comes_late():
    clock, sent, got_one = ManualClock(), [], threading.Event()
    service = NoticeService(story("nebius-late"), clock=clock)
    with by_signal(service, lambda name: (sent.append(name), got_one.set())):
        service.announce()
        clock.advance(29)
        service.look_again()
        assert not got_one.wait(0.05)
        clock.advance(1)
        service.look_again()
        assert got_one.wait(10)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503])
def test_a_service_can_refuse_with_any_status_once_or_for_good(play, status):
    wire = play("aws")
    wire.service.arm(ServiceFault.parse(f"{status}:2"))
    found = [wire.get(ACTION).status_code for _ in range(3)]
    assert found == [200, status, 200]
    wire.service.arm(ServiceFault.parse(f"{status}:1+"))
    assert {wire.get(ACTION).status_code for _ in range(3)} == {status}
    assert wire.service.log[-1].note == f"fault {status}"


def test_a_throttled_poller_gets_through_in_the_end(play):
    wire = play("aws-429")
    found = [wire.get(ACTION).status_code for _ in range(4)]
    assert found == [429, 429, 429, 200]


def test_a_closed_connection_is_an_error_and_not_an_answer(play):
    wire = play("aws-closed")
    with pytest.raises(requests.ConnectionError):
        wire.get(ACTION)
    assert wire.service.log[-1].status == 0


def test_beyond_the_hop_limit_a_token_never_arrives(play):
    wire = play("aws-hop-limit")
    with pytest.raises((requests.ReadTimeout, requests.ConnectTimeout)):
        requests.put(
            wire.base_url + "/latest/api/token", headers={TTL: "60"}, timeout=0.2
        )
    assert wire.get(ACTION).status_code == 200
    notes = [entry.note for entry in wire.service.log]
    assert "fault hop-limit" in notes


def test_a_slow_service_takes_its_time(play):
    wire = play("aws-slow")
    before = wire.clock.monotonic()
    assert wire.get(ACTION).status_code == 200
    assert wire.clock.monotonic() - before == 3


@pytest.mark.parametrize("provider", ["gcp", "azure", "alibaba"])
def test_a_fault_is_dressed_as_the_provider_would(play, provider):
    wire = play(f"{provider}-503")
    assert wire.get("/anything").status_code == 503


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        pytest.param("token-required:0", "counts begin at 1", id="zero"),
        pytest.param("429:x", "counts begin at 1", id="no-number"),
        pytest.param("429:", "counts begin at 1", id="nothing"),
        pytest.param("token-requird", "did you mean 'token-required'?", id="near-miss"),
        pytest.param("flood", "faults are token-required", id="unknown"),
    ],
)
def test_an_unknown_fault_or_count_says_how_to_mend_it(text, hint):
    with pytest.raises(UsageError) as caught:
        ServiceFault.parse(text)
    assert hint in str(caught.value)


@pytest.mark.parametrize("name", sorted(SERVICE_FAULTS))
@pytest.mark.parametrize("count", ["1", "3", "2+"])
def test_a_fault_is_spelt_as_it_is_read(name, count):
    assert str(ServiceFault.parse(f"{name}:{count}")) == f"{name}:{count}"


def test_a_second_announcement_waits_for_the_end_of_the_first():
    service = NoticeService(story("aws"), clock=ManualClock())
    service.announce()
    with pytest.raises(UsageError, match="in force already"):
        service.announce()
    service.withdraw()
    service.announce()
    assert [str(n.phase(service.clock.now())) for n in service.notices] == [
        "withdrawn",
        "announced",
    ]


def test_nothing_can_be_withdrawn_before_it_is_announced():
    service = NoticeService(story("aws"), clock=ManualClock())
    with pytest.raises(UsageError, match="no notice is in force"):
        service.withdraw()


def test_the_deadline_in_the_answer_is_when_the_reclaim_comes(play):
    wire = play("aws")
    named = wire.get(ACTION).json()["time"]
    assert wire.service.reclaim_at.strftime("%Y-%m-%dT%H:%M:%SZ") == named
    wire.clock.advance(119.9)
    assert not wire.service.wait_for_reclaim(at_most_s=0)
    wire.clock.advance(0.1)
    assert wire.service.wait_for_reclaim(at_most_s=0)


def test_whoever_waits_for_the_reclaim_wakes_when_it_is_hastened(play):
    wire = play("azure", announce=False)
    waiting = ThreadPoolExecutor(1).submit(
        wire.service.wait_for_reclaim, at_most_s=1_000
    )
    wire.service.announce()
    wire.clock.advance(30)
    wire.service.look_again()
    assert waiting.result(timeout=10)


def test_a_reset_makes_it_silent_again(play):
    wire = play("aws")
    assert wire.get(ACTION).status_code == 200
    wire.service.reset()
    assert wire.get(ACTION).status_code == 404
    assert len(wire.service.log) == 1


def test_the_in_process_wire_refuses_every_other_host():
    service = NoticeService(story("aws"), clock=ManualClock())
    with in_process(service), pytest.raises(requests.ConnectionError):
        requests.get("http://10.1.2.3/", timeout=5)


def test_the_in_process_wire_answers_at_the_ipv6_address():
    service = NoticeService(story("aws"), clock=ManualClock())
    with in_process(service):
        found = requests.get("http://[fd00:ec2::254]/latest/meta-data/", timeout=5)
    assert found.status_code == 200


def test_orders_drive_a_server_at_run_time():
    service = NoticeService(story("aws"), clock=ManualClock())
    with on_loopback(service) as url:
        order = f"{url}/_spotchaos"
        told = requests.post(f"{order}/announce", timeout=5).json()
        assert told["deadline"] == "2026-01-01T00:02:00+00:00"
        assert requests.get(url + ACTION, timeout=5).status_code == 200
        assert (
            requests.post(f"{order}/withdraw", timeout=5).json()["reclaim_at"] is None
        )
        assert requests.get(url + ACTION, timeout=5).status_code == 404
        requests.post(f"{order}/fault?name=403&count=1%2B", timeout=5)
        assert requests.get(url + ACTION, timeout=5).status_code == 403
        log = requests.get(f"{order}/log", timeout=5).json()
        assert [entry["status"] for entry in log] == [200, 404, 403]
        assert requests.post(f"{order}/reset", timeout=5).status_code == 200
        assert requests.get(f"{order}/log", timeout=5).json() == []


def test_an_answer_that_teaches_nothing_is_a_refusal():
    service = NoticeService(story("aws"), clock=ManualClock())
    with on_loopback(service) as url:
        requests.put(f"{url}/latest/api/token", headers={TTL: "60"}, timeout=5)
        requests.get(url + ACTION, timeout=5)
        requests.get(url + ACTION + "s", timeout=5)
        requests.get(url + ACTION, headers={"X-aws-ec2-metadata-token": "x"}, timeout=5)
    _, _, unknown, bad = service.log
    assert [entry.gave_token for entry in service.log] == [True, False, False, False]
    assert [entry.is_refusal for entry in service.log] == [False, False, True, True]
    assert unknown.refusal == f"404 to GET {ACTION}s, unknown path"
    assert bad.refusal == f"401 to GET {ACTION}, token unknown"


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("POST", "withdraw", 400, "no notice is in force"),
        ("POST", "fault?name=flod", 400, "unknown fault"),
        ("POST", "announce?after=soon", 400, "not a number"),
        ("POST", "announce?afer=3", 400, "announce knows no 'afer'"),
        ("POST", "reset?name=429", 400, "reset knows no 'name'"),
        ("GET", "announce", 404, "no order"),
        ("POST", "explode", 404, "no order"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(method, path, status, words):
    service = NoticeService(story("aws"), clock=ManualClock())
    with on_loopback(service) as url:
        answer = requests.request(method, f"{url}/_spotchaos/{path}", timeout=5)
    assert answer.status_code == status
    assert words in answer.json()["error"]


@pytest.mark.parametrize("body", ["{", "[1]", "3", "x" * 5000, "[" * 100_000, "\xff"])
def test_a_body_that_is_no_order_is_refused_and_nothing_is_done(body):
    service = NoticeService(story("aws"), clock=ManualClock())
    with on_loopback(service) as url:
        answer = requests.post(
            f"{url}/_spotchaos/announce", data=body.encode("latin-1"), timeout=5
        )
    assert answer.status_code == 400
    assert answer.json()["error"] == "the body is neither a form nor a JSON object"
    assert service.notices == ()


def test_an_order_may_be_told_in_its_body_and_with_a_bare_plus():
    service = NoticeService(story("aws"), clock=ManualClock())
    with on_loopback(service) as url:
        order = f"{url}/_spotchaos"
        requests.post(f"{order}/announce", json={"after": 60}, timeout=5)
        assert service.phase == "silent"
        assert len(service.notices) == 1
        for told in (
            {"data": {"name": "429", "count": "1+"}},
            {"json": {"name": "429", "count": 3}},
            {"data": iter([b"name=429", b"&count=7"])},
        ):
            requests.post(f"{order}/fault", timeout=5, **told)
        plus = requests.post(f"{order}/fault?name=403&count=2+", timeout=5)
    assert plus.json() == {"armed": "403:2+"}
    armed = [str(each.fault) for each in service._faults]
    assert armed == ["429:1+", "429:3", "429:7", "403:2+"]


def test_a_body_of_any_length_is_read_to_a_bound():
    service = NoticeService(story("azure"), clock=ManualClock())
    with on_loopback(service) as url:
        events = f"{url}/metadata/scheduledevents?api-version=2020-07-01"
        answer = requests.post(
            events, data=b"[" * (4 << 20), headers={"Metadata": "true"}, timeout=30
        )
        assert answer.status_code == 400
        with socket.create_connection(("127.0.0.1", urlsplit(url).port)) as client:
            client.sendall(
                b"POST /_spotchaos/withdraw HTTP/1.1\r\n"
                b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"
            )
            assert client.recv(12) == b"HTTP/1.1 400"


@pytest.fixture
def many_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_a_client_is_seen_on_a_descriptor_of_any_number():
    ours, theirs = socket.socketpair()
    number = fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD, 1024)
    ours.close()
    with socket.socket(fileno=number) as many, theirs:
        assert is_connected(many)
        theirs.shutdown(socket.SHUT_WR)
        assert not is_connected(many)


def test_a_socket_made_elsewhere_can_be_served_on():
    service = NoticeService(story("aws"), clock=ManualClock())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with on_loopback(service, listener=listener) as url:
            assert url == f"http://127.0.0.1:{port}"
            assert requests.get(url + ACTION, timeout=5).status_code == 404
        assert listener.getsockname()[1] == port


def test_a_port_in_use_is_named():
    first = NoticeService(story("aws"), clock=ManualClock())
    second = NoticeService(story("aws"), clock=ManualClock())
    with on_loopback(first) as url:
        port = urlsplit(url).port
        with pytest.raises(UsageError) as caught, on_loopback(second, port=port):
            pass
    assert str(caught.value) == (
        f"cannot listen on port {port}: it is in use\n"
        "Hint: choose another port, or 0 for a free one"
    )


def test_a_server_frees_its_port_and_leaves_no_thread():
    before = threading.active_count()
    service = NoticeService(story("gcp"), clock=ManualClock())
    with on_loopback(service) as url:
        port = urlsplit(url).port
        assert requests.get(url, timeout=5).status_code == 200
    assert threading.active_count() == before
    with on_loopback(NoticeService(story("gcp"), clock=ManualClock()), port=port):
        pass


def test_two_hundred_hanging_pollers_are_all_answered_by_one_change():
    pollers = 200
    service = NoticeService(story("gcp"))
    path = "/computeMetadata/v1/instance/preempted?wait_for_change=true"
    with on_loopback(service) as url, ExitStack() as links:
        place = urlsplit(url)
        asked = [
            links.enter_context(closing(HTTPConnection(place.hostname, place.port, 30)))
            for _ in range(pollers)
        ]
        for link in asked:
            link.request("GET", path, headers={"Metadata-Flavor": "Google"})
        assert until(lambda: service.held == pollers)
        (notice,) = service.announce()
        found = [link.getresponse().read() for link in asked]
    assert found.count(b"TRUE") == pollers
    # They had asked before there was anything to hear, and heard of it all the same.
    assert all(entry.at < notice.readable_at for entry in service.log)
    assert all(entry.answered_at >= notice.readable_at for entry in service.log)


def test_stopping_lets_hanging_pollers_go():
    service = NoticeService(story("gcp"))
    with on_loopback(service) as url:
        link = HTTPConnection(urlsplit(url).hostname, urlsplit(url).port, timeout=30)
        path = "/computeMetadata/v1/instance/preempted?wait_for_change=true"
        link.request("GET", path, headers={"Metadata-Flavor": "Google"})
        assert until(lambda: service.held == 1)
    with closing(link), pytest.raises(ConnectionError):
        link.getresponse()
