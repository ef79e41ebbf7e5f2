"""The GCS emulator behind the same layer."""

import http.client
import json
from urllib.parse import urlsplit

import pytest
import requests

from spotchaos.clock import ManualClock
from spotchaos.injectors.objectstore import GsStore, program_environment
from spotchaos.injectors.storage_dialects import GsDialect
from spotchaos.injectors.storage_faults import StorageFault

pytest.importorskip("gcp_storage_emulator")


@pytest.fixture(scope="module")
def clock():
    return ManualClock()


@pytest.fixture(scope="module")
def running(clock):
    with GsStore(clock=clock) as store:
        yield store


@pytest.fixture
def store(running):
    running.reset()
    running.make_bucket("bucket")
    return running


def arm(store, text):
    store.arm(StorageFault.parse(text))


def insert(store, name="key", body=b"x" * 1000):
    return requests.post(
        f"{store.base_url}/upload/storage/v1/b/bucket/o",
        params={"uploadType": "media", "name": name},
        data=body,
        headers={"Content-Type": "application/octet-stream"},
        timeout=10,
    )


def download(store, name="key"):
    url = f"{store.base_url}/storage/v1/b/bucket/o/{name}"
    return requests.get(url, params={"alt": "media"}, timeout=10)


def begin(store, name="key"):
    begun = requests.post(
        f"{store.base_url}/upload/storage/v1/b/bucket/o",
        params={"uploadType": "resumable", "name": name},
        json={},
        timeout=10,
    )
    return begun.headers["Location"]


def finish(place):
    span = {"Content-Range": "bytes 0-9/10"}
    return requests.put(place, data=b"x" * 10, headers=span, timeout=10)


def names(store):
    return [found.key for found in store.objects()]


def test_without_a_fault_bytes_come_back_as_they_went(store):
    assert insert(store, body=b"some bytes").status_code == 200
    assert download(store).content == b"some bytes"
    assert [e.operation for e in store.layer.log] == ["InsertObject", "GetObject"]


def test_a_session_leads_back_through_the_layer(store):
    assert begin(store).startswith(store.base_url)


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("gs-503", 503, "backendError"),
        ("gs-500", 500, "internalError"),
        ("gs-403", 403, "forbidden"),
        ("gs-expired-token", 401, "authError"),
    ],
)
def test_an_error_is_what_google_would_say(store, fault, status, reason):
    arm(store, fault)
    answer = insert(store)
    assert answer.status_code == status
    assert answer.json()["error"]["errors"][0]["reason"] == reason
    assert names(store) == []
    assert insert(store).status_code == 200


def test_an_upload_that_is_cut_leaves_no_object(store):
    arm(store, "gs-cut")
    with pytest.raises(requests.ConnectionError):
        insert(store, body=b"x" * 300_000)
    assert names(store) == []


def test_a_truncated_download_names_its_full_length(store):
    insert(store)
    arm(store, "gs-truncated-get")
    link = http.client.HTTPConnection(urlsplit(store.base_url).netloc, timeout=10)
    link.request("GET", "/download/storage/v1/b/bucket/o/key?alt=media")
    answer = link.getresponse()
    assert answer.headers["Content-Length"] == "1000"
    with pytest.raises(http.client.IncompleteRead):
        answer.read()
    link.close()


def test_a_lost_last_answer_hides_an_object_that_is_there(store):
    place = begin(store)
    arm(store, "gs-lost-complete")
    with pytest.raises(requests.ConnectionError):
        finish(place)
    assert names(store) == ["key"]


def test_a_lost_answer_to_a_whole_object_hides_that_it_is_there(store):
    arm(store, "gs-lost-complete")
    with pytest.raises(requests.ConnectionError):
        insert(store)
    assert names(store) == ["key"]


def test_an_error_in_the_body_of_200_leaves_nothing(store):
    place = begin(store)
    arm(store, "gs-error-body")
    answer = finish(place)
    assert answer.status_code == 200
    assert answer.json()["error"]["code"] == 503
    assert names(store) == []


def test_a_listing_may_lag_behind(store, clock):
    insert(store, name="old")
    clock.advance(6)
    insert(store, name="new")
    arm(store, "gs-lagging-list")
    url = f"{store.base_url}/storage/v1/b/bucket/o"
    lagging = requests.get(url, timeout=10).json()["items"]
    assert [row["name"] for row in lagging] == ["old"]
    assert len(requests.get(url, timeout=10).json()["items"]) == 2


def test_a_slow_answer_takes_its_time(store, clock):
    arm(store, "gs-slow")
    before_s = clock.monotonic()
    assert insert(store).status_code == 200
    assert clock.monotonic() - before_s == 5


def test_the_program_is_pointed_to_the_emulator(store):
    found = program_environment({"GOOGLE_APPLICATION_CREDENTIALS": "/key"}, store)
    assert found["STORAGE_EMULATOR_HOST"] == store.base_url
    assert "GOOGLE_APPLICATION_CREDENTIALS" not in found


def test_googles_own_client_works_through_the_layer(store):
    storage = pytest.importorskip("google.cloud.storage")
    credentials = pytest.importorskip("google.auth.credentials")
    client = storage.Client(
        project="spotchaos",
        credentials=credentials.AnonymousCredentials(),
        client_options={"api_endpoint": store.base_url},
    )
    client.bucket("bucket").blob("folder/key").upload_from_string(b"hello")
    assert client.bucket("bucket").blob("folder/key").download_as_bytes() == b"hello"


@pytest.mark.parametrize(
    ("method", "path", "query", "span", "name", "kind"),
    [
        (
            "POST",
            "/upload/storage/v1/b/b/o",
            {"name": "k"},
            "",
            "InsertObject",
            "write",
        ),
        (
            "POST",
            "/upload/storage/v1/b/b/o",
            {"uploadType": "resumable", "name": "k"},
            "",
            "StartUpload",
            "object",
        ),
        (
            "PUT",
            "/upload/storage/v1/b/b/o",
            {"upload_id": "1"},
            "bytes 0-9/*",
            "UploadChunk",
            "write",
        ),
        (
            "PUT",
            "/upload/storage/v1/b/b/o",
            {"upload_id": "1"},
            "bytes 0-9/10",
            "FinishUpload",
            "commit",
        ),
        (
            "PUT",
            "/upload/storage/v1/b/b/o",
            {"upload_id": "1"},
            "bytes 0-9/20",
            "UploadChunk",
            "write",
        ),
        (
            "PUT",
            "/upload/storage/v1/b/b/o",
            {"upload_id": "1"},
            "bytes */20",
            "QueryUpload",
            "object",
        ),
        (
            "PUT",
            "/upload/storage/v1/b/b/o",
            {"upload_id": "1"},
            "",
            "FinishUpload",
            "commit",
        ),
        ("GET", "/storage/v1/b/b/o", {}, "", "ListObjects", "list"),
        ("GET", "/storage/v1/b/b/o/k", {}, "", "StatObject", "object"),
        ("GET", "/storage/v1/b/b/o/k", {"alt": "media"}, "", "GetObject", "read"),
        ("POST", "/storage/v1/b/b/o/k/compose", {}, "", "ComposeObject", "commit"),
        ("DELETE", "/b/b/o/k", {}, "", "DeleteObject", "object"),
        ("POST", "/storage/v1/b", {}, "", "POST /storage/v1/b", "other"),
    ],
)
def test_operations_are_told_apart(method, path, query, span, name, kind):
    found = GsDialect().operation(method, path, query, {"content-range": span})
    assert (found.name, str(found.kind)) == (name, kind)


def test_an_error_body_is_json():
    dialect = GsDialect()
    operation = dialect.operation("GET", "/storage/v1/b/b/o/k", {}, {})
    _, content_type, body = dialect.error("503", operation)
    assert content_type == "application/json"
    assert json.loads(body)["error"]["code"] == 503
