"""What tests ask of an S3, and how they arm its faults."""

import io

from boto3.s3.transfer import TransferConfig

from spotchaos.injectors.storage_faults import StorageFault

PART_BYTES = 5 << 20
IN_PARTS = TransferConfig(
    multipart_threshold=1 << 20,
    multipart_chunksize=PART_BYTES,
    max_concurrency=1,
    use_threads=False,
)


def arm(store, text):
    store.arm(StorageFault.parse(text))


def operations(store):
    return [(entry.operation, entry.fault) for entry in store.layer.log]


def keys(store):
    return [found.key for found in store.objects()]


def put(client, body=b"x" * 1000, key="key"):
    return client.put_object(Bucket="bucket", Key=key, Body=body)


def upload(client, *, parts=2, key="key"):
    body = io.BytesIO(b"x" * (PART_BYTES * (parts - 1) + 10))
    client.upload_fileobj(body, "bucket", key, Config=IN_PARTS)
