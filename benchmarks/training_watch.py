"""What watching a metadata service costs, as a share of one CPU.

    python benchmarks/training_watch.py [SECONDS]

Polls a loopback service as the trainer does (AWS every five seconds, Azure and, without
its hanging request, Google Cloud every second), and prints the CPU time of the process
less that of an idle one, beside the bound. A process for each, all at the same time.
"""

import http.server
import subprocess
import sys
import textwrap
import threading

BOUND = 0.001

CLIENT = """
    import resource, sys, time
    from spotchaos.training.pollers import POLLERS
    from spotchaos.training.watch import InterruptionWatch

    name, url, seconds = sys.argv[1:]
    pollers = [] if name == "idle" else [POLLERS[name](url)]
    for poller in pollers:
        poller.hang_s = 0.0
    with InterruptionWatch(pollers=pollers):
        time.sleep(2.0)
        before = resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(float(seconds))
        after = resource.getrusage(resource.RUSAGE_SELF)
    print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
"""

ANSWERS = {
    "/metadata/scheduledevents": (200, '{"DocumentIncarnation": 1, "Events": []}'),
    "/computeMetadata/v1/instance/": (200, '{"preempted": "FALSE"}'),
    "/latest/api/token": (200, "token"),
}


class Service(http.server.BaseHTTPRequestHandler):
    """Nothing happens to any machine here."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        status, body = ANSWERS.get(self.path.partition("?")[0], (404, ""))
        self.send_response(status)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())
        self.server.asked += 1

    do_PUT = do_GET  # noqa: N815 - the name that the server looks for

    def log_message(self, *args):
        pass


def main():
    seconds = sys.argv[1] if len(sys.argv) > 1 else "60"
    clients = {}
    for name in ("idle", "aws", "azure", "gcp"):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
        server.asked = 0
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        command = [sys.executable, "-c", textwrap.dedent(CLIENT), name, url, seconds]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        clients[name] = (process, server)
    spent = {}
    for name, (process, _) in clients.items():
        output, _ = process.communicate()
        assert process.returncode == 0, name
        spent[name] = float(output)
    failed = 0
    for name in list(clients)[1:]:
        share = (spent[name] - spent["idle"]) / float(seconds)
        failed += share > BOUND
        print(
            f"{'ok ' if share <= BOUND else 'NOT'} {name}: {share:.4%} of a CPU "
            f"(bound {BOUND:.1%}), {clients[name][1].asked} requests"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
