"""Measure the notice and storage wires: requests a second, latencies, what layers cost.

    python benchmarks/metadata_server.py [--quick]

Targets: 500 requests/s with 64 pollers; a hanging GET answered within 50 ms of the change;
the fault layer at 70 % of bare moto's throughput or more, for objects of 64 MB; less than
5 us for each unrelated connect under the redirect. Clients run in a process of their own,
so that they do not compete with the server for its interpreter lock; both share the
machine's cores.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
import timeit
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)

from spotchaos.injectors.objectstore import S3Store
from spotchaos.probe import redirect
from spotchaos.providers.loopback import LoopbackServer, QuietHandler
from spotchaos.providers.service import NoticeService
from spotchaos.providers.serving import on_loopback
from spotchaos.providers.stories import story

POLLERS = 64
MB = 1 << 20
CLIENT = """
import http.client, sys, threading, time
host, port, path, seconds, pollers = sys.argv[1:]
counts = [0] * int(pollers)
end = time.monotonic() + float(seconds)

def poll(number):
    while time.monotonic() < end:
        link = http.client.HTTPConnection(host, int(port), timeout=30)
        link.request("GET", path)
        link.getresponse().read()
        link.close()
        counts[number] += 1

threads = [threading.Thread(target=poll, args=[n]) for n in range(int(pollers))]
began = time.monotonic()
[t.start() for t in threads]
[t.join() for t in threads]
print(sum(counts) / (time.monotonic() - began))
"""


# One thread for all of them, so that no client waits for another to be scheduled.
WAITERS = """
import select, socket, sys, time
host, port, pollers = sys.argv[1:]
path = "/computeMetadata/v1/instance/preempted?wait_for_change=true"
asked = f"GET {path} HTTP/1.1\\r\\nHost: {host}\\r\\nMetadata-Flavor: Google\\r\\n\\r\\n"
poller, links = select.poll(), {}
for _ in range(int(pollers)):
    link = socket.create_connection((host, int(port)))
    link.sendall(asked.encode())
    links[link.fileno()] = link
    poller.register(link, select.POLLIN)
while links:
    ready = poller.poll()
    now = time.monotonic()
    for number, _ in ready:
        print(now)
        poller.unregister(number)
        links.pop(number).close()
"""


class QuietMotoHandler(QuietHandler, MotoRequestHandler):
    """As the store's own handler, so that only the layer differs."""


def bare(environ, start_response):
    """Answer as a service that knows one thing: what the same server does at most."""
    body = b'{"action": "terminate", "time": "2026-01-01T00:02:00Z"}'
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


def requests_per_second(url, *, seconds):
    path = "/latest/meta-data/spot/instance-action"
    place = urlsplit(url)
    arguments = [place.hostname, str(place.port), path, str(seconds), str(POLLERS)]
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def served_per_second(*, rounds, seconds):
    """Return requests a second, and their share of a bare server's, in turns."""
    service = NoticeService(story("aws"))
    service.announce()
    with on_loopback(service) as url, LoopbackServer(bare) as other:
        taken = {url: [], other.base_url: []}
        for _ in range(rounds):
            for place, rates in taken.items():
                rates.append(requests_per_second(place, seconds=seconds))
        ours, most = (statistics.median(rates) for rates in taken.values())
    return ours, ours / most


def hanging_get_ms(*, rounds, pollers):
    """Return milliseconds from the change to the answer at the client's socket."""
    found = []
    for _ in range(rounds):
        service = NoticeService(story("gcp"))
        with on_loopback(service) as url:
            place = urlsplit(url)
            waiting = subprocess.Popen(
                [
                    *(sys.executable, "-c", WAITERS),
                    *(place.hostname, str(place.port), str(pollers)),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            while service.held < pollers:
                time.sleep(0.001)
            before = time.monotonic()  # one clock for all processes of a machine
            service.announce()
            arrived, _ = waiting.communicate()
            found += [(float(at) - before) * 1e3 for at in arrived.split()]
    return found


def client_for(url):
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
        config=Config(retries={"total_max_attempts": 1}),
    )


def seconds_for_objects(url, *, rounds, size_bytes):
    """Return the seconds of each put and get together, one object each."""
    client = client_for(url)
    body = os.urandom(size_bytes)
    taken = []
    for _ in range(rounds):
        before = time.perf_counter()
        client.put_object(Bucket="bucket", Key="k", Body=body)
        client.get_object(Bucket="bucket", Key="k")["Body"].read()
        taken.append(time.perf_counter() - before)
    return taken


def layer_share(*, rounds, size_bytes):
    """Return the layer's throughput as a share of bare moto's, in alternating rounds."""
    with S3Store() as store:
        app = DomainDispatcherApplication(create_backend_app)
        with LoopbackServer(app, handler=QuietMotoHandler) as bare:
            store.make_bucket("bucket")
            taken = {bare.base_url: [], store.base_url: []}
            for _ in range(rounds):
                for url, seconds in taken.items():
                    seconds += seconds_for_objects(url, rounds=1, size_bytes=size_bytes)
            bare_s, layer_s = (statistics.median(s) for s in taken.values())
    return bare_s / layer_s, 2 * size_bytes / MB / layer_s


def redirect_us(*, number):
    """Return what the redirect adds to an unrelated connect, and to how many times it."""
    mapping = {"169.254.169.254:80": "127.0.0.1:1", "100.100.100.200:80": "127.0.0.1:1"}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:

        def connect():
            link.connect(("127.0.0.1", 9))

        plain, patched = [], []
        for _ in range(9):
            plain.append(timeit.timeit(connect, number=number))
            redirect.install(mapping)
            patched.append(timeit.timeit(connect, number=number))
            redirect.uninstall()
    return (min(patched) - min(plain)) / number * 1e6, min(patched) / min(plain)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few seconds in all")
    is_quick = parser.parse_args().quick
    rate, share = served_per_second(rounds=1 if is_quick else 3, seconds=2)
    print(
        f"metadata server, {POLLERS} pollers   {rate:8.0f} requests/s, "
        f"{share:.0%} of a bare server   (500)"
    )
    for pollers in (1, POLLERS):
        found = hanging_get_ms(rounds=3 if is_quick else 10, pollers=pollers)
        median, worst = statistics.median(found), max(found)
        print(
            f"hanging GET, {pollers:2} waiting      "
            f"{median:8.1f} ms median, {worst:.1f} ms worst   (50 ms)"
        )
    size_bytes = (8 if is_quick else 64) * MB
    share, rate = layer_share(rounds=3 if is_quick else 9, size_bytes=size_bytes)
    print(
        f"fault layer, {size_bytes // MB} MB objects {share:8.0%} of bare moto, "
        f"{rate:.0f} MB/s   (70 %)"
    )
    cost_us, times = redirect_us(number=2_000 if is_quick else 20_000)
    print(
        f"redirect, unrelated connect {cost_us:8.2f} us more, "
        f"{times:.1f} times as long   (5 us)"
    )


if __name__ == "__main__":
    main()
