"""A child finds the server instead of its cloud."""

import pytest

from spotchaos.errors import UsageError
from spotchaos.providers.machine_profile import environment_for, redirects_for

URL = "http://127.0.0.1:4321"


def test_botocore_is_pointed_to_the_server():
    found = environment_for("aws", URL)
    assert found["AWS_EC2_METADATA_SERVICE_ENDPOINT"] == URL
    assert found["AWS_EC2_METADATA_DISABLED"] == "false"


def test_clients_of_google_get_a_host_without_a_scheme():
    assert environment_for("gcp", URL)["GCE_METADATA_HOST"] == "127.0.0.1:4321"


def test_built_in_addresses_are_redirected():
    assert redirects_for("aws", URL) == {
        "169.254.169.254:80": "127.0.0.1:4321",
        "[fd00:ec2::254]:80": "127.0.0.1:4321",
    }
    assert (
        "100.100.100.200:80=127.0.0.1:4321" in environment_for("alibaba", URL).values()
    )


def test_proxies_are_passed_by():
    assert "169.254.169.254" in environment_for("azure", URL)["NO_PROXY"]


def test_a_provider_without_http_redirects_nothing():
    assert "SPOTCHAOS_REDIRECT" not in environment_for("nebius", URL)


def test_an_unknown_provider_is_named():
    with pytest.raises(UsageError, match="unknown provider 'awss'"):
        environment_for("awss", URL)


def test_botocore_follows_the_variables(monkeypatch):
    from botocore.session import Session
    from botocore.utils import InstanceMetadataFetcher

    from spotchaos.clock import ManualClock
    from spotchaos.providers.service import NoticeService
    from spotchaos.providers.serving import on_loopback
    from spotchaos.providers.stories import story

    service = NoticeService(story("aws-token-required"), clock=ManualClock())
    with on_loopback(service) as url:
        for name, value in environment_for("aws", url).items():
            monkeypatch.setenv(name, value)
        endpoint = Session().get_config_variable("ec2_metadata_service_endpoint")
        fetcher = InstanceMetadataFetcher(
            timeout=5,
            num_attempts=1,
            config={"ec2_metadata_service_endpoint": endpoint},
        )
        assert fetcher.retrieve_iam_role_credentials()["role_name"] == "spotchaos"
    assert service.log[0].method == "PUT"
