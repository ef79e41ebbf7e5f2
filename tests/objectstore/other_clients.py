"""Save to our S3 and read it back with a client that is not boto3; print JSON.

A program, run by `test_clients.py` in a network namespace that has a loopback and nothing
else: `python other_clients.py CLIENT [FAULT]`.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from spotchaos.injectors.objectstore import S3Store
from spotchaos.injectors.storage_faults import StorageFault

CONTENT = bytes(range(256)) * (12 << 12)  # three parts of 5 MB
MANNERS = {
    "aws": """[default]
s3 =
  multipart_threshold = 5MB
  multipart_chunksize = 5MB
"""
}
# What each does with `url`, `there` (a file) and `back` (where it is to come).
COMMANDS = {
    "aws": (
        ["aws", "s3", "cp", "{there}", "s3://bucket/key"],
        ["aws", "s3", "cp", "s3://bucket/key", "{back}"],
        ["aws", "s3", "ls", "s3://bucket/"],
    ),
    "s5cmd": (
        ["s5cmd", "cp", "-p", "5", "{there}", "s3://bucket/key"],
        ["s5cmd", "cp", "-p", "5", "s3://bucket/key", "{back}"],
        ["s5cmd", "ls", "s3://bucket/*"],
    ),
    "s3torchconnector": (
        [sys.executable, __file__, "write", "{there}"],
        [sys.executable, __file__, "read", "{back}"],
        [sys.executable, __file__, "list"],
    ),
}


def connector(what, *paths):
    """Do one thing with s3torchconnector, in a process of its own."""
    from s3torchconnector import S3Checkpoint, S3ClientConfig, S3IterableDataset

    config = S3ClientConfig(force_path_style=True, part_size=5 << 20)
    url = os.environ["AWS_ENDPOINT_URL"]
    where = {"region": "us-east-1", "endpoint": url, "s3client_config": config}
    if what == "list":
        found = S3IterableDataset.from_prefix("s3://bucket/", **where)
        sys.stdout.write(" ".join(one.key for one in found))
        return
    store = S3Checkpoint(**where)
    (path,) = map(Path, paths)
    if what == "write":
        with store.writer("s3://bucket/key") as writer:
            writer.write(path.read_bytes())
    else:
        with store.reader("s3://bucket/key") as reader:
            path.write_bytes(reader.read())


def main(client, *faults):
    with tempfile.TemporaryDirectory() as folder, S3Store() as store:
        there, back = Path(folder, "there"), Path(folder, "back")
        there.write_bytes(CONTENT)
        Path(folder, "manners").write_text(MANNERS.get(client, ""))
        store.make_bucket("bucket")
        for fault in faults:
            store.arm(StorageFault.parse(fault))
        environment = {
            **os.environ,
            "AWS_ENDPOINT_URL": store.base_url,
            "S3_ENDPOINT_URL": store.base_url,
            "AWS_ACCESS_KEY_ID": "spotchaos",
            "AWS_SECRET_ACCESS_KEY": "spotchaos",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": str(Path(folder, "manners")),
            "NO_PROXY": "*",
        }
        statuses, told = [], ""
        for command in COMMANDS[client]:
            done = subprocess.run(
                [word.format(there=there, back=back) for word in command],
                env=environment,
                capture_output=True,
                text=True,
                timeout=90,
                check=False,
            )
            statuses.append(done.returncode)
            told = done.stdout + done.stderr
        log = [(entry.operation, entry.fault) for entry in store.layer.log]
        found = {
            "statuses": statuses,
            "is_same": back.exists() and back.read_bytes() == CONTENT,
            "is_there": [one.key for one in store.objects()] == ["key"],
            "is_listed": "key" in told,
            "struck": [fault for _, fault in log if fault],
            "operations": sorted({operation for operation, _ in log}),
        }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] in COMMANDS:
        main(*sys.argv[1:])
    else:
        connector(*sys.argv[1:])
