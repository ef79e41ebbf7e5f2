"""What a program's store says of the attempts of one trial."""

import socket
import threading
from dataclasses import replace

import pytest
import requests

from spotchaos.injectors.program_store import ProgramStore, StoreWanted, with_uploads
from spotchaos.injectors.storage_faults import StorageFault
from spotchaos.model import (
    Attempt,
    AttemptTrace,
    Ended,
    RankTrace,
    Request,
    SaveMark,
    Stored,
)

pytest.importorskip("gcp_storage_emulator")


@pytest.fixture
def store():
    """Return a function that starts a store with faults; it comes with its address."""
    opened = []

    def start(*faults):
        wanted = StoreWanted("gs", ("bucket",))
        asked = {text: StorageFault.parse(text) for text in faults}
        one = ProgramStore(wanted, asked).__enter__()
        listener = socket.create_server(("127.0.0.1", 0))
        server = one.serve(listener)
        opened.append((one, server, listener))
        return one, server.base_url

    yield start
    for one, server, listener in opened:
        server.stop()
        listener.close()
        one.__exit__(None, None, None)


def insert(url, name="key"):
    asked = {"uploadType": "media", "name": name}
    where = f"{url}/upload/storage/v1/b/bucket/o"
    return requests.post(where, params=asked, data=b"x" * 9, timeout=10).status_code


def test_a_refused_write_waits_until_it_is_repeated(store):
    one, url = store("gs-403:2")
    assert insert(url) == 200
    assert one.waited_s() is None
    assert insert(url) == 403
    assert one.waited_s() >= 0
    assert insert(url, "other") == 200
    assert one.waited_s() is not None
    assert insert(url) == 200
    assert one.waited_s() is None


def test_an_upload_in_parts_is_repeated_once_it_is_complete(store):
    one, url = store("gs-error-body")

    def begin():
        asked = {"uploadType": "resumable", "name": "key"}
        where = f"{url}/upload/storage/v1/b/bucket/o"
        begun = requests.post(where, params=asked, json={}, timeout=10)
        return begun.headers["Location"]

    def send(place, span):
        headers = {"Content-Range": f"bytes {span}"}
        return requests.put(place, data=b"x" * 10, headers=headers, timeout=10)

    send(begin(), "0-9/10")
    assert one.waited_s() is not None
    place = begin()
    assert one.waited_s() is not None
    assert send(place, "0-9/*").status_code == 308
    assert one.waited_s() is not None
    assert send(place, "10-19/20").status_code == 200
    assert one.waited_s() is None
    stored, _ = one.end_attempt()
    accepted = {r.operation: r.is_accepted for r in stored.requests}
    assert accepted["UploadChunk"]


def test_a_resumable_upload_that_is_left_is_nobodys_to_abort(store):
    one, url = store()
    where = f"{url}/upload/storage/v1/b/bucket/o"
    asked = {"uploadType": "resumable", "name": "key"}
    begun = requests.post(where, params=asked, json={}, timeout=10)
    assert begun.status_code == 200
    stored, _ = one.end_attempt()
    assert [request.operation for request in stored.requests] == ["StartUpload"]
    # It expires within a week, and no client can list it: unlike the parts of S3.
    assert stored.abandoned == ()


def test_a_lasting_fault_goes_with_the_machine_and_one_that_waits_stays(store):
    one, url = store("gs-403:1+", "gs-cut:4")
    assert [insert(url), insert(url)] == [403, 403]
    stored, injected = one.end_attempt()
    assert [(s.fault, s.times) for s in injected] == [("gs-403:1+", 2)]
    assert [request.status for request in stored.requests] == [403, 403]
    assert insert(url) == 200
    with pytest.raises(requests.ConnectionError):
        insert(url)
    _, injected = one.end_attempt()
    assert [(s.fault, s.times) for s in injected] == [("gs-cut:4", 1)]
    assert one.not_fired() == []


@pytest.mark.parametrize("goes_on", [True, False])
def test_the_nth_write_waits_before_the_store(store, goes_on):
    one, url = store()
    hold = one.hold(2)
    assert insert(url, "a") == 200
    assert not hold.is_reached
    found = []

    def second():
        try:
            found.append(insert(url, "b"))
        except requests.ConnectionError:
            found.append("nothing")

    thread = threading.Thread(target=second)
    thread.start()
    for _ in range(1000):
        if hold.is_reached:
            break
        thread.join(0.01)
    assert hold.is_reached
    assert found == []
    hold.release(goes_on=goes_on)
    thread.join(10)
    assert found == ([200] if goes_on else ["nothing"])
    assert insert(url, "c") == 200
    stored, _ = one.end_attempt()
    wanted = (
        ["bucket/a", "bucket/b", "bucket/c"] if goes_on else ["bucket/a", "bucket/c"]
    )
    assert sorted(stored.objects) == wanted


def saving(*paths):
    """Return an attempt that began three saves, 10 s apart, and put objects at 1 and 21."""
    saves = tuple(
        SaveMark(n, n, paths, None, 10.0 * n, None if n == 2 else 10.0 * n + 0.5)
        for n in range(3)
    )
    nothing = {"states": {}, "finish": None, "steps": (), "loads": (), "counts": {}}
    rank = RankTrace(rank=0, saves=saves, **nothing)
    puts = (
        Request(1.0, "PutObject", "write", "bucket/a", 200),
        Request(12.0, "PutObject", "write", "bucket/b", 503, fault="s3-503"),
        Request(13.0, "UploadPart", "write", "bucket/b", 200, part="1"),
        Request(21.0, "PutObject", "write", "bucket/c", 200),
    )
    return Attempt(
        number=1,
        command=("train",),
        ended=Ended.RECLAIMED,
        exit_code=None,
        trace=AttemptTrace({0: rank}, world_size=1, processes=1, torch_seen=True),
        wall_s=30.0,
        stored=Stored({}, {}, puts),
    )


def test_saves_without_a_file_are_of_the_objects_that_came_next():
    saves = with_uploads(saving()).trace.ranks[0].saves
    assert [save.paths for save in saves] == [("bucket/a",), (), ("bucket/c",)]
    assert [save.ended_at_s for save in saves] == [1.0, 10.5, None]


def test_an_attempt_that_ended_before_its_first_save_has_none():
    attempt = saving()
    rank = replace(attempt.trace.ranks[0], saves=())
    attempt = replace(attempt, trace=replace(attempt.trace, ranks={0: rank}))
    assert with_uploads(attempt) == attempt


def test_saves_with_files_keep_their_names():
    attempt = saving("last.pt")
    assert with_uploads(attempt) is attempt
