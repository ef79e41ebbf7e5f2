"""The fakes as fixtures: clouds that give notice, a store that fails, gloo ranks."""

import boto3
import botocore.exceptions
import pytest
import requests

from spotchaos.injectors.objectstore import StorageFault

AWS = "http://169.254.169.254/latest"


def test_imds_answers_requests_of_this_process(imds):
    token = requests.put(
        f"{AWS}/api/token", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    ).text
    asked = {
        "url": f"{AWS}/meta-data/spot/instance-action",
        "headers": {"X-aws-ec2-metadata-token": token},
    }
    assert requests.get(**asked).status_code == 404
    imds.announce()
    assert requests.get(**asked).json()["action"] == "terminate"


def test_gcp_metadata_answers_requests_of_this_process(gcp_metadata):
    asked = {
        "url": "http://metadata.google.internal/computeMetadata/v1/instance/preempted",
        "headers": {"Metadata-Flavor": "Google"},
    }
    assert requests.get(**asked).text == "FALSE"
    gcp_metadata.announce()
    assert requests.get(**asked).text == "TRUE"


def test_azure_events_answers_requests_of_this_process(azure_events):
    asked = {
        "url": "http://169.254.169.254/metadata/scheduledevents",
        "params": {"api-version": "2020-07-01"},
        "headers": {"Metadata": "true"},
    }
    assert requests.get(**asked).json()["Events"] == []
    azure_events.announce()
    assert requests.get(**asked).json()["Events"][0]["EventType"] == "Preempt"


def test_a_request_to_anywhere_else_is_refused(imds):
    with pytest.raises(requests.ConnectionError):
        requests.get("http://198.51.100.1/")


def test_spot_s3_fails_as_told_and_then_stores(spot_s3):
    client = boto3.client("s3")
    client.create_bucket(Bucket="checkpoints")
    spot_s3.arm(StorageFault.parse("s3-403:1"))
    with pytest.raises(botocore.exceptions.ClientError, match=r"403|Forbidden|Denied"):
        client.put_object(Bucket="checkpoints", Key="last.pt", Body=b"whole")
    client.put_object(Bucket="checkpoints", Key="last.pt", Body=b"whole")
    assert spot_s3.read("checkpoints", "last.pt") == b"whole"


def reduce_ranks():
    import torch
    import torch.distributed as dist

    value = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(value)
    return {"rank": dist.get_rank(), "sum": value}


@pytest.mark.ddp
def test_ddp_returns_what_each_rank_returned(ddp):
    returned = ddp(reduce_ranks, ranks=2)
    assert [r["rank"] for r in returned] == [0, 1]
    assert [r["sum"].item() for r in returned] == [3.0, 3.0]


def fail_on_rank_1():
    import torch.distributed as dist

    if dist.get_rank() == 1:
        raise RuntimeError("rank 1 has enough")
    dist.barrier()


@pytest.mark.ddp
def test_ddp_shows_the_last_lines_of_each_rank(ddp):
    with pytest.raises(pytest.fail.Exception, match="RuntimeError: rank 1 has enough"):
        ddp(fail_on_rank_1, ranks=2)


def wait_for_ever():
    import threading

    threading.Event().wait()


@pytest.mark.ddp
def test_ddp_ends_ranks_that_never_end(ddp):
    with pytest.raises(pytest.fail.Exception, match="no end within 1 s"):
        ddp(wait_for_ever, ranks=1, timeout_s=1)
