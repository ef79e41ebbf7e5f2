"""What cannot be gone on with: one sentence, a hint, and every file as it was."""

import json
import os
import shutil
from dataclasses import replace

import boto3
import pytest
import torch
from moto.server import ThreadedMotoServer

from spotchaos.training import manifest as manifests
from spotchaos.training.checkpoint import STATE, CheckpointStore
from spotchaos.training.command import main
from spotchaos.training.manifest import FileEntry, Manifest

STEPS = 4
OPTIONS = [
    "--ranks", "1", "--steps", str(STEPS), "--save-every", "2", "--samples", "40",
    "--watch", "none", "--run-id", "it",
]  # fmt: skip


def train(forked, out, *extra, ranks=1, patch=None):
    """Run the command on forked ranks; return the exit status of each."""

    def work():
        if patch is not None:
            patch()
        return main(["--out", str(out), *OPTIONS, *extra])

    started = [forked.one(work)] if ranks == 1 else forked.ranks(ranks, work)
    codes = forked.wait(started)
    return [code or rank.result for code, rank in zip(codes, started, strict=True)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, made once by a store that the command's runs go on from."""
    return tmp_path_factory.mktemp("trained") / "out"


@pytest.fixture
def out(forked, trained, tmp_path):
    if not trained.exists():
        assert train(forked, trained) == [0]
    shutil.copytree(trained, tmp_path / "out")
    return tmp_path / "out"


def content(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def each_state(change):
    def hurt(out):
        for path in out.rglob(STATE):
            path.write_bytes(change(path.read_bytes()))

    return hurt


def flipped(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def each_manifest(change):
    def hurt(out):
        for path in out.rglob(manifests.NAME):
            path.write_bytes(change(path.read_bytes()))

    return hurt


def of_a_newer_release(data):
    return json.dumps({**json.loads(data), "format": 99}).encode()


def of_another_program(out):
    """Put a file of other things where a state lies, with a manifest that fits it."""
    for folder in CheckpointStore(out).committed():
        torch.save({"net": print}, folder / STATE)
        data = (folder / STATE).read_bytes()
        entry = FileEntry(len(data), manifests.digest_of(folder / STATE))
        path = folder / manifests.NAME
        known = Manifest.parse(path.read_bytes(), of="it")
        path.write_bytes(replace(known, files={STATE: entry}).to_bytes())


def no_permission():
    def refuse(path, mode=0o777, *, dir_fd=None):
        raise PermissionError(13, "Permission denied", path)

    os.mkdir = refuse


@pytest.mark.parametrize(
    ("hurt", "extra", "more", "says", "hint"),
    [
        pytest.param(
            None, ["--store", "s4://x"], {}, "unknown scheme 's4' in 's4://x'",
            "schemes are file, gs, s3", id="unknown-scheme",
        ),
        pytest.param(
            None, ["--store", "s3://"], {}, "'s3://' names no bucket",
            "s3://bucket/prefix", id="no-bucket",
        ),
        pytest.param(
            None, ["--run-id", "another"], {},
            "belongs to run 'it', this is run 'another'", "choose another folder",
            id="another-run",
        ),
        pytest.param(
            each_state(flipped), [], {}, "none of the 2 checkpoints in", "move them away",
            id="damaged",
        ),
        pytest.param(
            each_state(lambda data: data[:-40]), [], {}, "bytes, its manifest says",
            "move them away", id="truncated",
        ),
        pytest.param(
            each_manifest(lambda data: b"[]"), [], {}, "is torn or foreign",
            "move them away", id="foreign-manifest",
        ),
        pytest.param(
            each_manifest(of_a_newer_release), [], {},
            "has format 99, this release reads up to 1", "resume with the release",
            id="newer-manifest",
        ),
        pytest.param(
            of_another_program, [], {}, "holds something else than tensors",
            "use only checkpoints that this trainer wrote", id="foreign-state",
        ),
        pytest.param(
            None, [], {"ranks": 2}, "was written by 1 ranks, this run has 2",
            "virtual workers", id="another-number-of-ranks",
        ),
        pytest.param(
            None, ["--virtual-workers", "2"], {},
            "was written by 1 ranks, this run has 2", "virtual workers",
            id="virtual-workers",
        ),
        pytest.param(
            None, ["--size", "48"], {}, "is of another model: ", "build the model",
            id="other-shapes",
        ),
        pytest.param(
            None, ["--samples", "3"], {}, "3 samples do not fill a step of 8",
            "a smaller batch", id="too-little-data",
        ),
    ],
)  # fmt: skip
def test_it_is_refused_in_one_sentence_and_nothing_is_touched(
    forked, out, capfd, hurt, extra, more, says, hint
):
    if hurt is not None:
        hurt(out)
    before = content(out)
    statuses = train(forked, out, *extra, **more)
    check(capfd.readouterr().err, statuses, says, hint)
    assert content(out) == before


def check(errors, statuses, says, hint):
    assert set(statuses) == {1}
    told = [line for line in errors.splitlines() if line.startswith("error: ")]
    hints = [line for line in errors.splitlines() if line.startswith("Hint: ")]
    assert len(told) == len(hints) == len(statuses), errors
    assert all(says in line for line in told), errors
    assert all(hint in line for line in hints), errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("where", ["--out", "--store"])
def test_a_folder_that_may_not_be_made_is_named_before_training(
    forked, tmp_path, capfd, where
):
    target = tmp_path / "refused"
    statuses = train(
        forked, tmp_path / "out", where, str(target / "x"), patch=no_permission
    )
    check(capfd.readouterr().err, statuses, "Permission denied", "folder")
    assert content(tmp_path) == {}


@pytest.fixture(scope="module")
def endpoint():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.mark.parametrize(
    ("url", "key", "says", "hint"),
    [
        ("s3://nobody/run", "id", "NoSuchBucket", "create the bucket"),
        ("s3://locked/run", "id", "403 on PutObject", "allow s3:PutObject"),
        ("s3://open/run", "", "no credentials for s3://open/run", "AWS_ACCESS_KEY_ID"),
    ],
    ids=["missing-bucket", "no-permission", "no-credentials"],
)
def test_a_bucket_that_cannot_be_used_is_named_before_training(
    forked, out, capfd, monkeypatch, endpoint, url, key, says, hint
):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(out.parent))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    if key:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key)
    if "locked" in url:
        close_the_bucket(endpoint)
    before = content(out)
    statuses = train(forked, out, "--store", url)
    check(capfd.readouterr().err, statuses, says, hint)
    assert content(out) == before


def close_the_bucket(endpoint):
    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket="locked")
    statement = {
        "Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "*",
    }  # fmt: skip
    client.put_bucket_policy(
        Bucket="locked", Policy=json.dumps({"Statement": [statement]})
    )
    client.close()
