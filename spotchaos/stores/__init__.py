"""Stores by URL scheme. To add one: write its module, then add its line here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from spotchaos.errors import StoreError, closest
from spotchaos.stores.base import Store

# Module and class: a scheme costs no import until it is used.
STORES: Mapping[str, tuple[str, str]] = {
    "file": ("spotchaos.stores.local", "LocalStore"),
    "gs": ("spotchaos.stores.gcs", "GcsStore"),
    "s3": ("spotchaos.stores.s3", "S3Store"),
}


def open_store(url: str, **options: Any) -> Store:
    """Return the store that `url` names; a plain path is a folder.

    Raises:
        StoreError: the scheme is unknown, or the URL names no bucket.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        scheme = "file"
    if scheme not in STORES:
        raise StoreError(
            f"unknown scheme {scheme!r} in {url!r}",
            hint=closest(scheme, STORES) or f"schemes are {', '.join(sorted(STORES))}",
        )
    module, name = STORES[scheme]
    store: Store = getattr(importlib.import_module(module), name)(url, **options)
    return store
