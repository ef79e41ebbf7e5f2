"""One contract for every place where checkpoints live, and the faults of each."""

import errno
import itertools
import os
import random
import threading

import boto3
import pytest
from botocore import exceptions
from botocore.config import Config
from moto.server import ThreadedMotoServer

from spotchaos.clock import ManualClock
from spotchaos.errors import StoreError
from spotchaos.stores import STORES, open_store
from spotchaos.stores.base import ConflictError, MissingError
from spotchaos.stores.retry import Retry, TransientError
from spotchaos.stores.s3 import S3Store

PART = 5 << 20  # the smallest that S3 takes


@pytest.fixture(scope="module")
def moto():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(moto):
    client = boto3.client(
        "s3", endpoint_url=moto, region_name="us-east-1", aws_access_key_id="id",
        aws_secret_access_key="key", config=Config(retries={"total_max_attempts": 1}),
    )  # fmt: skip
    client.create_bucket(Bucket="runs")
    yield client
    for item in client.list_objects_v2(Bucket="runs").get("Contents", ()):
        client.delete_object(Bucket="runs", Key=item["Key"])
    client.delete_bucket(Bucket="runs")
    client.close()


def quick(tries=4):
    return Retry(tries=tries, clock=ManualClock(), rng=random.Random(1))


@pytest.fixture(scope="module")
def gcs_server():
    emulator = pytest.importorskip(
        "gcp_storage_emulator.server", reason="gcp-storage-emulator is not installed"
    )
    server = emulator.create_server(
        "127.0.0.1", 0, in_memory=True, default_bucket="runs"
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=sorted(STORES))
def store(request, tmp_path, monkeypatch):
    if request.param == "file":
        return open_store(str(tmp_path / "store"))
    if request.param == "s3":
        return S3Store(
            "s3://runs/deep/prefix", client=request.getfixturevalue("s3"),
            part_bytes=PART, retry=quick(),
        )  # fmt: skip
    server = request.getfixturevalue("gcs_server")
    host, port = server._api._httpd.server_address[:2]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{host}:{port}")
    name = f"test-{os.urandom(4).hex()}"
    return open_store(f"gs://runs/{name}", part_bytes=1 << 20, retry=quick())


class TestContract:
    def test_what_was_written_is_read(self, store, tmp_path):
        store.prepare()
        store.write("step-1/state.pt", b"some bytes")
        store.read("step-1/state.pt", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == b"some bytes"

    def test_a_large_file_arrives_whole(self, store, tmp_path):
        data = random.Random(3).randbytes(2 * PART + 777)
        (tmp_path / "large").write_bytes(data)
        store.write("large", tmp_path / "large")
        store.read("large", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == data
        assert store.names() == {"large": len(data)}

    def test_names_are_listed_by_prefix_with_their_size(self, store):
        for name in ("step-1/a", "step-1/b", "step-2/a"):
            store.write(name, name.encode())
        assert store.names("step-1/") == {"step-1/a": 8, "step-1/b": 8}
        assert store.names("other") == {}
        assert list(store.names()) == ["step-1/a", "step-1/b", "step-2/a"]

    def test_a_written_object_is_replaced(self, store, tmp_path):
        store.write("a", b"old and long")
        store.write("a", b"new")
        store.read("a", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == b"new"

    def test_a_commit_is_listed_and_may_be_said_twice(self, store):
        store.commit("step-1/manifest.json", b"{}")
        store.commit("step-1/manifest.json", b"{}")
        assert store.names() == {"step-1/manifest.json": 2}

    def test_a_commit_never_replaces_another(self, store, tmp_path):
        store.commit("m", b"first")
        with pytest.raises(ConflictError, match="exists and holds something else"):
            store.commit("m", b"second")
        store.read("m", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == b"first"

    def test_a_missing_object_is_named(self, store, tmp_path):
        with pytest.raises(MissingError, match="nothing/here does not exist"):
            store.read("nothing/here", tmp_path / "back")

    def test_deleting_twice_is_no_error(self, store):
        store.write("step-1/a", b"x")
        store.delete("step-1/a")
        store.delete("step-1/a")
        assert store.names() == {}

    def test_a_reader_sees_old_or_new_and_never_a_mix(self, store, tmp_path):
        old, new = b"o" * 300_000, b"n" * 400_000
        store.write("a", old)
        stop = threading.Event()

        def write():
            while not stop.is_set():
                store.write("a", new)
                store.write("a", old)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for number in range(10):
                store.read("a", tmp_path / str(number))
                assert (tmp_path / str(number)).read_bytes() in (old, new)
        finally:
            stop.set()
            writer.join()

    def test_preparing_leaves_nothing(self, store):
        store.prepare()
        assert store.names() == {}


@pytest.mark.parametrize(
    ("url", "message", "hint"),
    [
        ("s3a://runs", "unknown scheme 's3a' in 's3a://runs'", "did you mean 's3'?"),
        ("ftp://x", "unknown scheme 'ftp'", "schemes are file, gs, s3"),
        ("s3://", "'s3://' names no bucket", "write s3://bucket/prefix"),
        ("gs:///x", "'gs:///x' names no bucket", "write gs://bucket/prefix"),
    ],
)
def test_a_url_that_names_no_store_is_refused(url, message, hint):
    with pytest.raises(StoreError, match=message) as error:
        open_store(url)
    assert error.value.hint == hint


# --- S3


class Faulty:
    """A client whose named calls fail so many times, or answer in another way."""

    def __init__(self, client, **faults):
        self._client = client
        self._faults = {name: list(plan) for name, plan in faults.items()}
        self.calls = []

    def __getattr__(self, name):
        real = getattr(self._client, name)
        if not callable(real):
            return real

        def call(**arguments):
            self.calls.append(name)
            plan = self._faults.get(name, [])
            fault = plan.pop(0) if plan else None
            if isinstance(fault, Exception):
                raise fault
            answer = real(**arguments)
            return fault(answer) if fault is not None else answer

        return call if name != "get_paginator" else real


def refusal(code, status, operation="PutObject"):
    return exceptions.ClientError(
        {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}},
        operation,
    )


def s3_store(client, tries=4, **faults):
    faulty = Faulty(client, **faults)
    store = S3Store("s3://runs/p", client=faulty, part_bytes=PART, retry=quick(tries))
    return store, faulty


TRANSIENT = [
    pytest.param(refusal("SlowDown", 503), id="503"),
    pytest.param(refusal("InternalError", 500), id="500"),
    pytest.param(refusal("InternalError", 200), id="200-with-error-body"),
    pytest.param(
        exceptions.EndpointConnectionError(endpoint_url="x"), id="no-connection"
    ),
    pytest.param(exceptions.ReadTimeoutError(endpoint_url="x"), id="time-out"),
    pytest.param(ConnectionResetError(errno.ECONNRESET, "reset"), id="reset"),
]


@pytest.mark.parametrize("fault", TRANSIENT)
@pytest.mark.parametrize(
    "call", ["put_object", "upload_part", "complete_multipart_upload", "head_object"]
)
def test_s3_what_passes_is_tried_again(s3, tmp_path, fault, call):
    store, _ = s3_store(s3, **{call: [fault]})
    data = os.urandom(PART + 9) if "upload" in call else b"small"
    store.write("a", data)
    store.read("a", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
    assert not s3.list_multipart_uploads(Bucket="runs").get("Uploads")


def test_s3_what_does_not_pass_ends_in_one_error(s3):
    store, client = s3_store(s3, put_object=[refusal("SlowDown", 503)] * 9)
    with pytest.raises(
        StoreError, match=r"s3://runs/p/a: SlowDown on PutObject \(4 tries"
    ):
        store.write("a", b"x")
    assert client.calls == ["put_object"] * 4
    assert store.names() == {}


@pytest.mark.parametrize(
    ("code", "status", "hint"),
    [
        ("AccessDenied", 403, "allow s3:PutObject"),
        ("ExpiredToken", 400, "renew the credentials"),
        ("NoSuchBucket", 404, "create the bucket"),
        ("InvalidAccessKeyId", 403, "check AWS_ACCESS_KEY_ID"),
    ],
)
def test_s3_what_cannot_pass_is_not_tried_again(s3, code, status, hint):
    store, client = s3_store(s3, put_object=[refusal(code, status)] * 9)
    with pytest.raises(
        StoreError, match=f"s3://runs/p/a: {code} on PutObject"
    ) as error:
        store.write("a", b"x")
    assert error.value.hint.startswith(hint)
    assert client.calls == ["put_object"]


def test_s3_a_failed_part_leaves_no_short_object_and_no_open_upload(s3):
    store, _ = s3_store(s3, upload_part=[None, *[refusal("AccessDenied", 403)] * 99])
    with pytest.raises(StoreError, match="AccessDenied"):
        store.write("a", os.urandom(3 * PART))
    assert store.names() == {}
    assert not s3.list_multipart_uploads(Bucket="runs").get("Uploads")


def test_s3_an_interrupt_leaves_no_open_upload(s3):
    class Interrupted(S3Store):
        def _parts(self, source):
            yield from [bytes(PART)]
            raise KeyboardInterrupt

    store = Interrupted("s3://runs/p", client=s3, part_bytes=PART, retry=quick())
    with pytest.raises(KeyboardInterrupt):
        store.write("a", bytes(3 * PART))
    assert store.names() == {}
    assert not s3.list_multipart_uploads(Bucket="runs").get("Uploads")


def test_s3_uploads_that_killed_runs_left_open_are_aborted(s3):
    s3.create_multipart_upload(Bucket="runs", Key="p/step-1/state.pt")
    s3.create_multipart_upload(Bucket="runs", Key="another/run")
    store, _ = s3_store(s3)
    store.prepare()
    left = s3.list_multipart_uploads(Bucket="runs").get("Uploads", ())
    assert [upload["Key"] for upload in left] == ["another/run"]


def test_s3_an_object_that_is_not_there_after_success_is_written_again(s3, tmp_path):
    def lose(answer):
        s3.delete_object(Bucket="runs", Key="p/a")
        return answer

    store, client = s3_store(s3, put_object=[lose])
    store.write("a", b"x")
    assert client.calls.count("put_object") == 2
    assert store.names() == {"a": 1}


def test_s3_a_short_body_is_not_taken_as_whole(s3, tmp_path):
    class Short:
        def __init__(self, body):
            self._body = body
            self._left = 4

        def read(self, size):
            data = self._body.read(min(size, self._left))
            self._left -= len(data)
            return data

    def cut(answer):
        return {**answer, "Body": Short(answer["Body"])}

    store, _ = s3_store(s3, get_object=[cut])
    store.write("a", b"0123456789")
    store.read("a", tmp_path / "back")  # tried again
    assert (tmp_path / "back").read_bytes() == b"0123456789"
    store, _ = s3_store(s3, get_object=[cut] * 9)
    with pytest.raises(StoreError, match="came short: 4 of 10 bytes"):
        store.read("a", tmp_path / "again")


def test_s3_a_damaged_object_is_noticed(s3, tmp_path):
    store, _ = s3_store(s3)
    store.write("a", b"0123456789")
    found = s3.head_object(Bucket="runs", Key="p/a")
    s3.put_object(
        Bucket="runs", Key="p/a", Body=b"0123x56789", Metadata=found["Metadata"]
    )
    with pytest.raises(StoreError, match="came damaged"):
        store.read("a", tmp_path / "back")


def test_s3_a_commit_whose_answer_was_lost_is_no_conflict(s3):
    def drop(answer):
        raise ConnectionResetError(errno.ECONNRESET, "reset")

    store, client = s3_store(s3, put_object=[drop])
    store.commit("m", b"{}")
    assert client.calls.count("put_object") == 2
    assert store.names() == {"m": 2}


def test_s3_a_store_without_conditions_gets_a_plain_put(s3):
    store, client = s3_store(s3, put_object=[refusal("NotImplemented", 501)])
    store.commit("m", b"{}")
    assert client.calls.count("put_object") == 2


def test_s3_a_missing_bucket_and_missing_credentials_are_found_at_the_start(
    s3, moto, monkeypatch
):
    store = S3Store("s3://no-such-bucket/p", client=s3, retry=quick())
    with pytest.raises(StoreError, match="NoSuchBucket"):
        store.prepare()
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(StoreError, match="no credentials for s3://runs/p") as error:
        S3Store("s3://runs/p", retry=quick()).prepare()
    assert error.value.hint.startswith("set AWS_ACCESS_KEY_ID")


# --- the rest


def test_waits_are_bounded_spread_out_and_grow():
    clock = ManualClock()
    retry = Retry(tries=9, clock=clock, rng=random.Random(2))
    moments = []

    def attempt():
        moments.append(clock.monotonic())
        raise TransientError("down")

    with pytest.raises(StoreError, match=r"down \(9 tries\)"):
        retry(attempt)
    waits = [b - a for a, b in itertools.pairwise(moments)]
    bounds = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert all(0 <= wait <= bound for wait, bound in zip(waits, bounds, strict=True))
    assert len(set(waits)) == len(waits)


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a//b"])
def test_a_name_never_leaves_the_folder(tmp_path, name):
    with pytest.raises(StoreError, match="is no name of an object"):
        open_store(str(tmp_path)).write(name, b"x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="cannot write"):
        open_store(str(tmp_path / "store")).prepare()


def test_a_full_disk_is_an_error_and_leaves_the_old_object(tmp_path, monkeypatch):
    store = open_store(f"file://{tmp_path}")
    store.write("a", b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"cannot write .*a: No space left"):
        store.write("a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]
