"""Proxies of the user's own: they stand neither before our fakes nor in the program's way."""

from pathlib import Path

import pytest

from spotchaos.injectors.objectstore import s3_environment
from spotchaos.launch.isolation.environment import environment_of
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.isolation.proxies import proxy_variable
from spotchaos.providers.machine_profile import environment_for

CLOUD = "169.254.169.254"
PROXY = "http://proxy.example:3128"
METADATA = environment_for("aws", "http://127.0.0.1:1338")


def excepted(own, extra):
    """Return what an attempt's requests go to directly, whatever proxy there is."""
    found = environment_of(
        Program(command=("true",), folder=Path("/"), environment=own),
        orders=Path("/dev/null"),
        temporary=Path("/tmp"),
        generation=1,
        host_name="machine",
        offline=True,
        extra=extra,
    )
    assert found.get("no_proxy") == found.get("NO_PROXY")
    return found.get("NO_PROXY", "").split(",")


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_a_proxy_of_the_users_is_passed_by(name):
    assert CLOUD in excepted({name: PROXY}, METADATA)
    assert "127.0.0.1" in excepted({name: PROXY}, s3_environment("http://127.0.0.1:9"))


def test_a_proxy_that_the_program_names_itself_is_not():
    names = excepted({}, METADATA)
    assert CLOUD not in names
    assert "127.0.0.1" in names


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_what_the_user_has_excepted_stays_so(name):
    own = {"http_proxy": PROXY, name: "internal.example, 10.0.0.0/8"}
    assert excepted(own, METADATA)[:2] == ["internal.example", "10.0.0.0/8"]


def test_without_fakes_nothing_is_excepted():
    assert excepted({"http_proxy": PROXY}, {}) == [""]


@pytest.mark.parametrize(
    ("own", "variable"),
    [
        ({}, ""),
        ({"https_proxy": PROXY}, ""),
        ({"http_proxy": ""}, ""),
        ({"http_proxy": PROXY}, "http_proxy"),
        ({"ALL_PROXY": PROXY, "no_proxy": "other"}, "ALL_PROXY"),
        ({"http_proxy": PROXY, "NO_PROXY": f"other,{CLOUD}"}, ""),
        ({"http_proxy": PROXY, "NO_PROXY": "*"}, ""),
    ],
)
def test_the_proxy_before_a_cloud_is_known(own, variable):
    assert proxy_variable(own, (CLOUD,)) == variable
