"""What polling a metadata service costs, as a share of one CPU.

    python benchmarks/training_watch.py [SECONDS]

Polls a loopback service as the trainer would, once every five seconds for AWS and once a
second for Azure, and prints the CPU time of the process less that of an idle one.
"""

import http.server
import os
import subprocess
import sys
import textwrap

SERVICE = """
class Quiet(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()
    do_PUT = do_GET
    def log_message(self, *args): pass
"""

CLIENT = """
    import resource, sys, time
    from spotchaos.training.pollers import POLLERS
    from spotchaos.training.watch import InterruptionWatch
    import requests
    pollers = [POLLERS[sys.argv[1]](sys.argv[2])] if len(sys.argv) > 3 else []
    with InterruptionWatch(pollers=pollers):
        time.sleep(1.0)
        before = resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(float(sys.argv[-1]))
        after = resource.getrusage(resource.RUSAGE_SELF)
    print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
"""


def main():
    seconds = sys.argv[1] if len(sys.argv) > 1 else "30"
    server = subprocess.Popen(
        [sys.executable, "-c", "import http.server\n" + SERVICE + textwrap.dedent("""
            server = http.server.HTTPServer(("127.0.0.1", 0), Quiet)
            print(server.server_port, flush=True)
            server.serve_forever()
        """)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        for provider in ("aws", "azure"):
            used = spent(provider, url, seconds) - spent(seconds)
            share = used / float(seconds)
            print(
                f"{provider}: {used * 1000:.1f} ms of CPU in {seconds} s, {share:.4%}"
            )
    finally:
        server.kill()
        server.wait()


def spent(*arguments):
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CLIENT), *arguments],
        capture_output=True, text=True, check=True, env=dict(os.environ),
    )  # fmt: skip
    return float(answer.stdout)


if __name__ == "__main__":
    assert http.server
    main()
