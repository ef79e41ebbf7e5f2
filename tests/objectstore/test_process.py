"""A store in a process of its own: ordered about, and ended."""

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from spotchaos.errors import HarnessError
from spotchaos.injectors.objectstore import S3Store
from spotchaos.injectors.storage_faults import StorageFault
from spotchaos.injectors.storage_process import S3Process


def client_of(store):
    return boto3.client(
        "s3",
        endpoint_url=store.base_url,
        region_name="us-east-1",
        aws_access_key_id="spotchaos",
        aws_secret_access_key="spotchaos",
        config=Config(retries={"total_max_attempts": 1}),
    )


def test_a_store_of_its_own_shares_nothing_and_takes_orders():
    with S3Process(faults=[StorageFault.parse("s3-403:1")]) as apart, S3Store() as here:
        assert apart.environment()["AWS_ENDPOINT_URL"] == apart.base_url
        here.make_bucket("bucket")
        client = client_of(apart)
        client.create_bucket(Bucket="bucket")
        with pytest.raises(ClientError, match="AccessDenied"):
            client.put_object(Bucket="bucket", Key="k", Body=b"x")
        client.put_object(Bucket="bucket", Key="k", Body=b"x")
        assert [entry["fault"] for entry in apart.log()] == ["", "s3-403", ""]
        assert here.objects() == []
        apart.arm(StorageFault.parse("s3-503:1+"))
        with pytest.raises(ClientError, match="SlowDown"):
            client.put_object(Bucket="bucket", Key="k", Body=b"x")
        with pytest.raises(HarnessError, match="does not fit"):
            apart.arm(StorageFault.parse("gs-503"))
        apart.reset()
        assert apart.log() == []
    apart.stop()


def test_a_child_that_does_not_start_is_named():
    with pytest.raises(HarnessError, match="did not start"):
        S3Process(prefix=["false"]).start()
