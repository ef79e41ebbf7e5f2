"""The layer before a store knows which objects it is being asked about."""

import io

import pytest

from spotchaos.injectors.storage_dialects import S3Dialect
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
