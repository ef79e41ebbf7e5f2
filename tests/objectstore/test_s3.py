"""An S3 that fails as told, seen by boto3 and by a client without manners."""

import http.client
import re
import signal
import socket
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
import requests
from asking import PART_BYTES, arm, keys, operations, put, upload
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    HTTPClientError,
    ResponseStreamingError,
)

from spotchaos.errors import HarnessError, UsageError
from spotchaos.injectors.objectstore import S3Store, program_environment
from spotchaos.injectors.storage_faults import STORAGE_FAULTS, StorageFault


def test_without_a_fault_bytes_come_back_as_they_went(store, client):
    put(client, b"some bytes")
    assert client.get_object(Bucket="bucket", Key="key")["Body"].read() == b"some bytes"
    assert operations(store) == [("PutObject", ""), ("GetObject", "")]
    assert store.read("bucket", "key") == b"some bytes"


@pytest.mark.parametrize(
    ("fault", "code", "status"),
    [
        ("s3-503", "SlowDown", 503),
        ("s3-500", "InternalError", 500),
        ("s3-403", "AccessDenied", 403),
        ("s3-expired-token", "ExpiredToken", 400),
        ("s3-clock-skew", "RequestTimeTooSkewed", 403),
    ],
)
def test_an_error_is_what_s3_would_say(store, client, fault, code, status):
    arm(store, fault)
    with pytest.raises(ClientError) as caught:
        put(client)
    assert caught.value.response["Error"]["Code"] == code
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert keys(store) == []
    put(client)
    assert keys(store) == ["key"]


def test_a_retry_recovers_from_one_refusal(store, make_client):
    arm(store, "s3-503:1")
    put(make_client(attempts=2))
    assert operations(store) == [("PutObject", "s3-503"), ("PutObject", "")]


def test_a_lasting_refusal_defeats_every_retry(store, make_client):
    arm(store, "s3-500:1+")
    with pytest.raises(ClientError):
        put(make_client(attempts=2))
    assert store.layer.fired() == {"s3-500:1+": 2}


def test_the_nth_operation_is_struck(store, client):
    arm(store, "s3-503:3")
    put(client, key="a")
    put(client, key="b")
    with pytest.raises(ClientError):
        put(client, key="c")
    put(client, key="d")
    assert keys(store) == ["a", "b", "d"]


def test_a_part_that_fails_leaves_no_object(store, client):
    # 1: begin the upload, 2: its first part, 3: its second.
    arm(store, "s3-403:3+")
    with pytest.raises(ClientError):
        upload(client)
    assert keys(store) == []
    assert store.abandoned_uploads() == [("bucket", "key")]
    rule = {
        "ID": "tidy",
        "Status": "Enabled",
        "Filter": {"Prefix": ""},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
    }
    client.put_bucket_lifecycle_configuration(
        Bucket="bucket", LifecycleConfiguration={"Rules": [rule]}
    )
    assert store.abandoned_uploads() == []


def test_an_upload_that_is_cut_leaves_no_object(store, client):
    arm(store, "s3-cut")
    with pytest.raises((ConnectionClosedError, HTTPClientError)):
        put(client, b"x" * 300_000)
    assert keys(store) == []
    assert operations(store) == [("PutObject", "s3-cut")]


@pytest.mark.parametrize("chunk", ["ZZ\r\nabc", "5\r\nab", ""])
def test_a_client_that_leaves_amid_its_chunks_leaves_no_object_and_no_word(
    store, capfd, chunk
):
    place = urlsplit(store.base_url)
    with socket.create_connection((place.hostname, place.port), timeout=10) as client:
        client.sendall(
            b"PUT /bucket/key HTTP/1.1\r\nHost: x\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n" + chunk.encode()
        )
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    assert keys(store) == []
    assert capfd.readouterr().err == ""


def test_a_part_that_is_cut_is_sent_again(store, make_client):
    arm(store, "s3-cut:1")
    upload(make_client(attempts=2))
    assert [found.size_bytes for found in store.objects()] == [PART_BYTES + 10]


@pytest.mark.parametrize("fault", ["s3-cut", "s3-truncated-get"])
def test_a_download_that_ends_early_is_noticed_by_boto3(store, client, fault):
    put(client, b"x" * 100_000)
    arm(store, fault)
    body = client.get_object(Bucket="bucket", Key="key")["Body"]
    with pytest.raises((ResponseStreamingError, HTTPClientError)):
        body.read()
    assert len(client.get_object(Bucket="bucket", Key="key")["Body"].read()) == 100_000


def test_a_truncated_answer_names_its_full_length(store, client):
    put(client, b"x" * 1000)
    arm(store, "s3-truncated-get")
    signed = urlsplit(
        client.generate_presigned_url("get_object", {"Bucket": "bucket", "Key": "key"})
    )
    link = http.client.HTTPConnection(signed.netloc, timeout=10)
    link.request("GET", f"{signed.path}?{signed.query}")
    answer = link.getresponse()
    assert answer.headers["Content-Length"] == "1000"
    with pytest.raises(http.client.IncompleteRead) as caught:
        answer.read()
    assert len(caught.value.partial) == 500
    link.close()


def test_a_truncation_strikes_downloads_only(store, client):
    arm(store, "s3-truncated-get:1")
    put(client)
    client.head_object(Bucket="bucket", Key="key")
    assert store.layer.fired() == {"s3-truncated-get:1": 0}


def test_a_lost_answer_to_complete_hides_an_object_that_is_there(store, client):
    arm(store, "s3-lost-complete")
    with pytest.raises((ConnectionClosedError, HTTPClientError)):
        upload(client)
    assert keys(store) == ["key"]


def test_a_lost_answer_to_a_whole_object_hides_that_it_is_there(store, client):
    arm(store, "s3-lost-complete")
    with pytest.raises((ConnectionClosedError, HTTPClientError)):
        put(client)
    assert keys(store) == ["key"]


def test_an_error_in_the_body_of_200_leaves_nothing(store, client):
    arm(store, "s3-error-body:1+")
    with pytest.raises(ClientError, match="InternalError"):
        upload(client)
    assert keys(store) == []


def test_a_client_that_looks_at_the_status_only_believes_it(store):
    url = f"{store.base_url}/bucket/key"
    begun = requests.post(f"{url}?uploads", timeout=10).text
    upload_id = re.search("<UploadId>(.*)</UploadId>", begun)[1]
    arm(store, "s3-error-body")
    answer = requests.post(f"{url}?uploadId={upload_id}", data="<x/>", timeout=10)
    assert answer.status_code == 200
    assert "<Code>InternalError</Code>" in answer.text
    assert keys(store) == []


def test_a_slow_answer_takes_its_time_and_then_is_right(store, client, clock):
    arm(store, "s3-slow")
    before_s = clock.monotonic()
    put(client)
    assert clock.monotonic() - before_s == 5
    assert keys(store) == ["key"]


def test_a_listing_may_lag_behind(store, client, clock):
    put(client, key="old")
    clock.advance(6)
    put(client, key="a new & odd key")
    arm(store, "s3-lagging-list")
    lagging = client.list_objects_v2(Bucket="bucket")
    assert [row["Key"] for row in lagging["Contents"]] == ["old"]
    assert lagging["KeyCount"] == 1
    assert client.list_objects_v2(Bucket="bucket")["KeyCount"] == 2


def test_the_last_save_is_named_by_whoever_knows_it(store, client):
    fault = StorageFault.parse("s3-403:last")
    with pytest.raises(UsageError, match="a save that the store cannot know"):
        store.arm(fault)
    put(client, key="a")
    put(client, key="b")
    done = store.layer.strikable(fault)
    assert done == 2
    store.arm(fault.on_last_save(done=0))
    with pytest.raises(ClientError):
        put(client, key="c")
    assert keys(store) == ["a", "b"]


def test_a_fault_that_never_struck_is_known(store, client):
    arm(store, "s3-error-body")
    put(client)
    assert store.layer.fired() == {"s3-error-body:1": 0}


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        pytest.param("s3-50", "did you mean 's3-503'?", id="near-miss"),
        pytest.param("enospc", "faults are s3-503", id="of-another-kind"),
        pytest.param("s3-503:0", "counts begin at 1", id="zero"),
        pytest.param("s3-503:", "counts begin at 1", id="nothing"),
        pytest.param("s3-503:-1", "counts begin at 1", id="negative"),
        pytest.param("s3-503:first", "counts begin at 1", id="word"),
    ],
)
def test_an_unknown_fault_or_count_says_how_to_mend_it(text, hint):
    with pytest.raises(UsageError) as caught:
        StorageFault.parse(text)
    assert hint in str(caught.value)


@pytest.mark.parametrize("name", sorted(STORAGE_FAULTS))
@pytest.mark.parametrize("count", ["1", "7", "2+", "last"])
def test_a_fault_is_spelt_as_it_is_read(name, count):
    assert str(StorageFault.parse(f"{name}:{count}")) == f"{name}:{count}"


def test_a_fault_for_another_store_is_refused(store):
    with pytest.raises(UsageError, match="does not fit a store of s3"):
        arm(store, "gs-503")


def test_one_s3_runs_in_a_process_at_a_time(running):
    with pytest.raises(UsageError, match="runs in this process already"):
        S3Store().start()


def test_a_store_that_does_not_run_has_no_address():
    with pytest.raises(HarnessError, match="not running"):
        _ = S3Store().base_url


def test_orders_arm_faults_and_read_the_log(store, client):
    order = f"{store.base_url}/_spotchaos"
    told = requests.post(f"{order}/fault?name=s3-403&count=1", timeout=5)
    assert told.json() == {"armed": "s3-403:1"}
    with pytest.raises(ClientError):
        put(client)
    (entry,) = requests.get(f"{order}/log", timeout=5).json()
    assert (entry["operation"], entry["status"]) == ("PutObject", 403)
    assert (entry["bucket"], entry["key"]) == ("bucket", "key")
    refused = requests.post(f"{order}/announce", timeout=5)
    assert refused.status_code == 400
    assert refused.json()["error"] == "an object store has no notice"
    assert requests.post(f"{order}/reset", timeout=5).status_code == 200
    assert store.objects() == []


def test_real_credentials_do_not_reach_the_program(store):
    real = {
        "PATH": "/usr/bin",
        "AWS_ACCESS_KEY_ID": "REAL",
        "AWS_SESSION_TOKEN": "REAL",
        "AWS_PROFILE": "work",
        "AWS_ROLE_ARN": "REAL",
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json",
    }
    found = program_environment(real, store)
    assert "REAL" not in found.values()
    assert found["PATH"] == "/usr/bin"
    assert found["AWS_ENDPOINT_URL"] == found["AWS_ENDPOINT_URL_S3"] == store.base_url
    assert found["AWS_SHARED_CREDENTIALS_FILE"] == "/dev/null"
    assert not {"AWS_PROFILE", "AWS_ROLE_ARN", "GOOGLE_APPLICATION_CREDENTIALS"} & set(
        found
    )
    assert "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS" not in found
    assert "AWS_EC2_METADATA_SERVICE_ENDPOINT" not in found
    kept = program_environment(real, store, keep_metadata=True)
    assert kept["AWS_EC2_METADATA_SERVICE_ENDPOINT"] == "http://127.0.0.1:1"


def test_a_child_finds_the_store_by_its_environment(store):
    code = (
        "import boto3; c = boto3.client('s3'); "
        "c.put_object(Bucket='bucket', Key='from-a-child', Body=b'hello')"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        env=program_environment({"PATH": "/usr/bin"}, store),
        check=True,
        timeout=60,
    )
    assert keys(store) == ["from-a-child"]


def test_the_command_serves_alone_and_ends_cleanly(make_client):
    process = subprocess.Popen(
        [sys.executable, "-m", "spotchaos", "s3", "--fault", "s3-503:2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        client = make_client(at=url)
        client.create_bucket(Bucket="bucket")
        put(client, key="k")
        with pytest.raises(ClientError, match="SlowDown"):
            put(client, key="k")
        put(client, key="k")
        lines = [process.stdout.readline().rstrip() for _ in range(4)]
        assert lines[0].endswith("CreateBucket bucket 200")
        assert lines[2].endswith("PutObject bucket/k 503  (fault s3-503)")
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=20)
        assert (process.returncode, rest, errors) == (0, "", "")
    finally:
        process.kill()
        process.communicate()
