"""How a child finds a loopback server where it would look for its cloud."""

from __future__ import annotations

from urllib.parse import urlsplit

from spotchaos.providers import ADDRESSES
from spotchaos.providers.profiles import profile

# The probe reads it and patches sockets; see `spotchaos.probe.redirect`.
REDIRECT_VARIABLE = "SPOTCHAOS_REDIRECT"


def environment_for(provider: str, base_url: str) -> dict[str, str]:
    """Return the variables by which a child finds the server instead of the cloud.

    Where the provider's clients know a variable, it is set; the built-in addresses are
    caught by the probe, which reads `SPOTCHAOS_REDIRECT`. Proxies are bypassed, since a
    request through one would miss the server.

    Args:
        provider: a name of `profiles.toml`.
        base_url: of the loopback server.

    Raises:
        UsageError: the provider is unknown.

    Source:
        botocore/configprovider.py and utils.py; google-auth, `_metadata`; Go's
        compute/metadata.
    """
    profile(provider)
    authority = urlsplit(base_url).netloc
    addresses = ADDRESSES.get(provider, ())
    found = {"NO_PROXY": ",".join(["127.0.0.1", "localhost", *addresses])}
    found["no_proxy"] = found["NO_PROXY"]
    if provider == "aws":
        found |= {
            "AWS_EC2_METADATA_DISABLED": "false",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": base_url,
        }
    if provider == "gcp":
        found |= {
            "GCE_METADATA_HOST": authority,
            "GCE_METADATA_IP": authority,
            "GCE_METADATA_ROOT": authority,
        }
    if addresses:
        redirects = redirects_for(provider, base_url)
        found[REDIRECT_VARIABLE] = ",".join(f"{a}={b}" for a, b in redirects.items())
    return found


def redirects_for(provider: str, base_url: str) -> dict[str, str]:
    """Return the provider's built-in addresses, each with where it leads instead."""
    target = urlsplit(base_url).netloc
    return {f"{url_host(a)}:80": target for a in ADDRESSES.get(provider, ())}


def url_host(address: str) -> str:
    """Spell a host as URLs do: an IPv6 address in brackets."""
    return f"[{address}]" if ":" in address else address
