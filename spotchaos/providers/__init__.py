"""Providers by name. To add one: write its module, then add its line here.

Only those with a metadata service stand here; what every provider documents is in
`profiles.toml`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spotchaos.providers.alibaba import AlibabaMetadata
from spotchaos.providers.aws import AwsMetadata
from spotchaos.providers.azure import AzureMetadata
from spotchaos.providers.exchange import Provider
from spotchaos.providers.gcp import GcpMetadata
from spotchaos.providers.tencent import TencentMetadata

PROVIDERS: Mapping[str, Callable[..., Provider]] = {
    "aws": AwsMetadata,
    "gcp": GcpMetadata,
    "azure": AzureMetadata,
    "alibaba": AlibabaMetadata,
    "tencent": TencentMetadata,
}
# Where a program that has the address built in will ask, on port 80.
ADDRESSES: Mapping[str, tuple[str, ...]] = {
    "aws": AwsMetadata.ADDRESSES,
    "gcp": GcpMetadata.ADDRESSES,
    "azure": AzureMetadata.ADDRESSES,
    "alibaba": AlibabaMetadata.ADDRESSES,
    "tencent": TencentMetadata.ADDRESSES,
}
