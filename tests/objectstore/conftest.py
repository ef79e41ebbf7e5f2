"""One S3 for each module, empty before each test, and boto3 to talk to it."""

import sys
from pathlib import Path

import boto3
import pytest
from botocore.config import Config

from spotchaos.clock import ManualClock
from spotchaos.injectors.objectstore import S3Store

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)


@pytest.fixture(scope="module")
def clock():
    return ManualClock()


@pytest.fixture(scope="module")
def running(clock):
    with S3Store(clock=clock) as store:
        yield store


@pytest.fixture
def store(running):
    running.reset()
    running.make_bucket("bucket")
    return running


@pytest.fixture(scope="module")
def make_client(running):
    def make(*, attempts=1, at=running.base_url):
        return boto3.client(
            "s3",
            endpoint_url=at,
            region_name="us-east-1",
            aws_access_key_id="spotchaos",
            aws_secret_access_key="spotchaos",
            config=Config(retries={"total_max_attempts": attempts}, read_timeout=20),
        )

    return make


@pytest.fixture(scope="module")
def client(make_client):
    return make_client()
