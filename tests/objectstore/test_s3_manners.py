"""An S3 that answers as S3 does where moto alone would not."""

import re

import pytest
import requests
from asking import arm, keys, operations, upload
from botocore.exceptions import ClientError


def test_an_upload_that_was_aborted_cannot_be_gone_on_with(store, client):
    upload_id = client.create_multipart_upload(Bucket="bucket", Key="k")["UploadId"]
    which = {"Bucket": "bucket", "Key": "k", "UploadId": upload_id}
    etag = client.upload_part(**which, PartNumber=1, Body=b"x")["ETag"]
    client.abort_multipart_upload(**which)
    parts = {"Parts": [{"ETag": etag, "PartNumber": 1}]}
    for go_on in (
        lambda: client.upload_part(**which, PartNumber=1, Body=b"x"),
        lambda: client.complete_multipart_upload(**which, MultipartUpload=parts),
        lambda: client.list_parts(**which),
        lambda: client.abort_multipart_upload(**which),
    ):
        with pytest.raises(ClientError) as caught:
            go_on()
        answer = caught.value.response
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 404
        assert answer["Error"]["Code"] == "NoSuchUpload"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("PUT", "/bucket/k?partNumber=1&uploadId=none", 404, "NoSuchUpload"),
        ("PUT", "/bucket/k?partNumber=x&uploadId=none", 404, "NoSuchUpload"),
        ("PUT", "/nowhere/k?partNumber=1&uploadId=none", 404, "NoSuchBucket"),
        ("POST", "/bucket?delete", 400, "InvalidRequest"),
        ("POST", "/bucket/k?uploadId=none", 404, "NoSuchUpload"),
        ("PATCH", "/bucket/k", 405, "MethodNotAllowed"),
        ("BREW", "/", 405, "MethodNotAllowed"),
    ],
)
def test_what_makes_no_sense_is_refused_as_s3_would(store, method, path, status, code):
    answer = requests.request(method, store.base_url + path, data="<bad", timeout=10)
    assert (answer.status_code, re.findall("<Code>(.*)</Code>", answer.text)) == (
        status,
        [code],
    )


@pytest.mark.parametrize(
    "said", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_bytes_that_are_called_a_form_are_kept_as_they_are(store, said):
    url = f"{store.base_url}/bucket/key"
    headers = {"Content-Type": said}
    assert requests.put(url, data=b"a=1&b", headers=headers, timeout=10).ok
    assert store.read("bucket", "key") == b"a=1&b"


@pytest.mark.parametrize(
    "host", ["bucket.localhost", "bucket.s3.us-east-1.amazonaws.com"]
)
def test_a_bucket_may_stand_before_the_host(store, host):
    arm(store, "s3-503")
    url = f"{store.base_url}/a/key"
    headers = {"Host": host}
    statuses = [
        requests.put(url, data=b"x", headers=headers, timeout=10).status_code
        for _ in range(2)
    ]
    assert statuses == [503, 200]
    assert operations(store) == [("PutObject", "s3-503"), ("PutObject", "")]
    assert [entry.bucket for entry in store.layer.log] == ["bucket", "bucket"]
    assert keys(store) == ["a/key"]


def test_an_object_of_a_bucket_without_versions_has_the_version_null(store, client):
    upload(client)
    assert "VersionId" not in client.head_object(Bucket="bucket", Key="key")
    begun = client.create_multipart_upload(Bucket="bucket", Key="key")
    at = {"Bucket": "bucket", "Key": "key", "UploadId": begun["UploadId"]}
    tag = client.upload_part(**at, PartNumber=1, Body=b"x")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": tag}]}
    assert "VersionId" not in client.complete_multipart_upload(
        **at, MultipartUpload=parts
    )
    asked = client.head_object(Bucket="bucket", Key="key", VersionId="null")
    assert asked["ContentLength"] == 1


def test_versions_are_told_apart_where_there_are_any(store, client):
    client.put_bucket_versioning(
        Bucket="bucket", VersioningConfiguration={"Status": "Enabled"}
    )
    first = client.put_object(Bucket="bucket", Key="key", Body=b"old")["VersionId"]
    client.put_object(Bucket="bucket", Key="key", Body=b"newer")
    asked = client.head_object(Bucket="bucket", Key="key", VersionId=first)
    assert asked["ContentLength"] == 3


def test_the_rights_of_an_object_made_of_parts_can_be_read(store, client):
    upload(client)
    grants = client.get_object_acl(Bucket="bucket", Key="key")["Grants"]
    assert [grant["Permission"] for grant in grants] == ["FULL_CONTROL"]
