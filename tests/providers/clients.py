"""Ask for each provider's notice at its built-in address, with every client there is.

A program, run by `test_redirect.py` in a network namespace that has a loopback and nothing
else: a request that was not redirected could not leave. Prints one JSON object, client to
what it got.
"""

import asyncio
import fcntl
import http.client
import importlib.util
import json
import shutil
import socket
import struct
import subprocess
import sys
import urllib.request

from spotchaos.probe import redirect
from spotchaos.providers.loopback import LoopbackServer
from spotchaos.providers.machine_profile import redirects_for
from spotchaos.providers.service import NoticeService
from spotchaos.providers.serving import MetadataApp, on_loopback
from spotchaos.providers.stories import story

HOST = "169.254.169.254"
PATH = "/latest/meta-data/spot/instance-action"
ACTION = f"http://{HOST}{PATH}"
GOOGLE = "http://metadata.google.internal/computeMetadata/v1/instance/preempted"
FLAVOR = {"Metadata-Flavor": "Google"}


def with_requests():
    import requests

    return requests.get(ACTION, timeout=20).json()["action"]


def with_requests_over_ipv6():
    import requests

    url = ACTION.replace(HOST, "[fd00:ec2::254]")
    return requests.get(url, timeout=20).json()["action"]


def with_urllib():
    with urllib.request.urlopen(ACTION, timeout=20) as answer:
        return json.load(answer)["action"]


def with_http_client():
    link = http.client.HTTPConnection(HOST, timeout=20)
    link.request("GET", PATH)
    found = json.loads(link.getresponse().read())["action"]
    link.close()
    return found


def with_httpx():
    import httpx

    return httpx.get(ACTION, timeout=20).json()["action"]


def with_httpx_async():
    import httpx

    async def ask():
        async with httpx.AsyncClient(timeout=20) as client:
            return (await client.get(ACTION)).json()["action"]

    return asyncio.run(ask())


def with_aiohttp(url=ACTION, headers=None):
    import aiohttp

    async def ask():
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers=headers) as answer,
        ):
            return await answer.text()

    text = asyncio.run(ask())
    return json.loads(text)["action"] if url == ACTION else text


def with_asyncio_over_ipv6():
    async def ask():
        reader, writer = await asyncio.open_connection("fd00:ec2::254", 80)
        writer.write(f"GET {PATH} HTTP/1.0\r\n\r\n".encode())
        found = await reader.read()
        writer.close()
        await writer.wait_closed()
        return json.loads(found.rpartition(b"\r\n\r\n")[2])["action"]

    return asyncio.run(ask())


def with_botocore():
    from botocore.utils import InstanceMetadataFetcher

    fetcher = InstanceMetadataFetcher(timeout=20, num_attempts=1)
    return fetcher.retrieve_iam_role_credentials()["role_name"]


def at_google_with_requests():
    import requests

    return requests.get(GOOGLE, headers=FLAVOR, timeout=20).text


def at_google_with_aiohttp():
    return with_aiohttp(GOOGLE, FLAVOR)


def at_alibaba_with_requests():
    import requests

    url = "http://100.100.100.200/latest/meta-data/instance/spot/termination-time"
    return requests.get(url, timeout=20).status_code


def at_azure_with_requests():
    import requests

    url = f"http://{HOST}/metadata/scheduledevents?api-version=2020-07-01"
    answer = requests.get(url, headers={"Metadata": "true"}, timeout=20)
    return answer.json()["Events"][0]["EventType"]


def tutorial_poller():
    """Ask as the tutorials do: no token, every exception swallowed."""
    import requests

    try:
        return requests.get(ACTION, timeout=20).status_code == 200
    except Exception:
        return False


def is_refused(attempt):
    try:
        attempt()
    except OSError as refused:
        return "spotchaos" in str(refused)
    return False


def elsewhere():
    """Try to leave the machine in every way that Python's sockets offer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        return {
            "tcp": is_refused(lambda: socket.create_connection(("192.0.2.1", 80), 20)),
            "ipv6": is_refused(
                lambda: socket.create_connection(("2001:db8::1", 80), 5)
            ),
            "name": is_refused(
                lambda: socket.create_connection(("example.com", 80), 5)
            ),
            "gethostbyname": is_refused(lambda: socket.gethostbyname("example.com")),
            "gethostbyname_ex": is_refused(
                lambda: socket.gethostbyname_ex("a.example")
            ),
            "gethostbyaddr": is_refused(lambda: socket.gethostbyaddr("192.0.2.1")),
            "getnameinfo": is_refused(lambda: socket.getnameinfo(("192.0.2.1", 80), 0)),
            "udp": is_refused(lambda: datagrams.connect(("192.0.2.1", 53))),
            "sendto": is_refused(lambda: datagrams.sendto(b"x", ("192.0.2.1", 53))),
            "sendmsg": is_refused(
                lambda: datagrams.sendmsg([b"x"], [], 0, ("192.0.2.1", 53))
            ),
            "connect_ex": datagrams.connect_ex(("192.0.2.1", 53)) != 0,
        }


def curl():
    """Ask with a program that is no Python, at the real address on this loopback."""
    if shutil.which("curl") is None or shutil.which("ip") is None:
        return None
    subprocess.run(["ip", "addr", "add", f"{HOST}/32", "dev", "lo"], check=True)
    service = NoticeService(story("aws"))
    service.announce()
    with LoopbackServer(MetadataApp(service), host=HOST, port=80):
        done = subprocess.run(
            ["curl", "-s", "-f", ACTION],
            check=True,
            timeout=20,
            capture_output=True,
        )
    return json.loads(done.stdout)["action"]


def play(name, clients):
    service = NoticeService(story(name))
    service.announce()
    found = {}
    with on_loopback(service) as base_url:
        redirect.install(redirects_for(service.story.provider, base_url))
        for label, client in clients.items():
            module = label.partition(" ")[0]
            needed = module in {"httpx", "aiohttp"}
            if needed and importlib.util.find_spec(module) is None:
                found[label] = None
            else:
                found[label] = client()
        redirect.uninstall()
    return found


def bring_up_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up_and_running = struct.pack("16sH14s", b"lo", 0x1 | 0x40, b"")
        fcntl.ioctl(any_socket, 0x8914, up_and_running)  # SIOCSIFFLAGS


def main():
    bring_up_loopback()
    found = play(
        "aws",
        {
            "requests": with_requests,
            "requests over ipv6": with_requests_over_ipv6,
            "urllib": with_urllib,
            "http.client": with_http_client,
            "httpx": with_httpx,
            "httpx async": with_httpx_async,
            "aiohttp": with_aiohttp,
            "asyncio over ipv6": with_asyncio_over_ipv6,
            "botocore": with_botocore,
            "poller of version 1": tutorial_poller,
            "elsewhere": elsewhere,
        },
    )
    found |= play("aws-token-required", {"poller without a token": tutorial_poller})
    found |= play("aws-missing", {"poller without a notice": tutorial_poller})
    found |= play(
        "gcp",
        {
            "requests at google": at_google_with_requests,
            "aiohttp at google": at_google_with_aiohttp,
        },
    )
    found |= play("alibaba", {"requests at alibaba": at_alibaba_with_requests})
    found |= play("azure", {"requests at azure": at_azure_with_requests})
    sys.stdout.write(json.dumps(found | {"curl": curl()}))


if __name__ == "__main__":
    main()
