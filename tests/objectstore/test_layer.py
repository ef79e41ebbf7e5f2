"""The layer before a store knows which objects it is being asked about."""

import io

import pytest

from spotchaos.clock import ManualClock
from spotchaos.injectors.storage_dialects import S3Dialect
from spotchaos.injectors.storage_faults import StorageFault
from spotchaos.injectors.storage_layer import StorageLayer

PUT = {
    "REQUEST_METHOD": "PUT",
    "PATH_INFO": "/bucket/key",
    "QUERY_STRING": "",
    "CONTENT_LENGTH": "0",
    "wsgi.input": io.BytesIO(),
}


def start_response(status, headers, exc_info=None):
    return lambda data: None


def test_an_object_is_busy_until_the_store_has_answered():
    seen = []

    def store(environ, start):
        seen.append(layer.is_busy("bucket", "key"))
        start("200 OK", [("Content-Length", "0")])
        return [b""]

    layer = StorageLayer(store, S3Dialect())
    list(layer(dict(PUT), start_response))
    assert (seen, layer.is_busy("bucket", "key")) == ([True], False)


def test_a_client_that_goes_away_leaves_nothing_busy():
    def store(environ, start):
        raise ConnectionResetError

    layer = StorageLayer(store, S3Dialect())
    with pytest.raises(ConnectionResetError):
        list(layer(dict(PUT), start_response))
    assert not layer.is_busy("bucket", "key")


LIST = {
    "REQUEST_METHOD": "GET",
    "PATH_INFO": "/bucket",
    "QUERY_STRING": "list-type=2",
    "wsgi.input": io.BytesIO(),
}


@pytest.mark.parametrize(
    ("rests", "is_shown"), [(True, False), (False, True)], ids=["between", "within"]
)
def test_a_slow_start_does_not_end_the_lag_of_a_listing(rests, is_shown):
    clock = ManualClock()

    def store(environ, start):
        row = (
            b"<ListBucketResult><Contents><Key>key</Key></Contents></ListBucketResult>"
        )
        body = row if environ["REQUEST_METHOD"] == "GET" else b""
        start("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    layer = StorageLayer(store, S3Dialect(), clock=clock)
    list(layer(dict(PUT), start_response))
    clock.advance(1.0)
    if rests:
        layer.rest()
    clock.advance(60.0)  # until the next attempt first asks
    layer.arm(StorageFault.parse("s3-lagging-list:1+"))
    (body,) = layer(dict(LIST), start_response)
    assert (b"<Key>key</Key>" in body) == is_shown
    clock.advance(60.0)
    (body,) = layer(dict(LIST), start_response)
    assert b"<Key>key</Key>" in body
