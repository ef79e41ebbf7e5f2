"""An S3 store in a process of its own, for attempts side by side or in a namespace.

Moto keeps its buckets in its process, so trials that run at the same time need a process
each. This is `spotchaos s3`, started, ordered about over its control endpoint, and ended.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import spotchaos
from spotchaos.errors import HarnessError
from spotchaos.injectors.objectstore import s3_environment
from spotchaos.injectors.storage_faults import StorageFault

STOP_S = 10.0


class S3Process:
    """`spotchaos s3` as a child; use as a context manager.

    Args:
        faults: armed from the start.
        prefix: words before the command, such as `nsenter -t PID -n -U`; the control
            endpoint is then reachable only from within that namespace.
    """

    def __init__(
        self, *, faults: Sequence[StorageFault] = (), prefix: Sequence[str] = ()
    ) -> None:
        self._faults = tuple(faults)
        self._prefix = tuple(prefix)
        self._process: subprocess.Popen[str] | None = None
        self.base_url = ""

    def start(self) -> Self:
        """Start the child and wait for its address.

        Raises:
            HarnessError: it ended without one.
        """
        words = [*self._prefix, sys.executable, "-m", "spotchaos", "s3"]
        for fault in self._faults:
            words += ["--fault", str(fault)]
        # The child imports the very package that we are.
        package = str(Path(spotchaos.__file__).parent.parent)
        path = os.pathsep.join(p for p in (package, os.environ.get("PYTHONPATH")) if p)
        self._process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self._process.stdout is not None
        self.base_url = self._process.stdout.readline().strip()
        if not self.base_url.startswith("http://"):
            _, errors = self._process.communicate(timeout=STOP_S)
            raise HarnessError(f"the S3 store did not start: {errors.strip()[-500:]}")
        # From here on it prints a line for each request; the log has them all.
        self._process.stdout.close()
        return self

    def stop(self) -> None:
        """End the child, with all objects; safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=STOP_S)
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def environment(self) -> dict[str, str]:
        """Return what points boto3, s3fs and the aws command there, with dummy keys."""
        return s3_environment(self.base_url)

    def arm(self, fault: StorageFault) -> None:
        """Let `fault` strike from now on."""
        name, _, count = str(fault).partition(":")
        self._order("POST", f"fault?name={name}&count={quote(count)}")

    def log(self) -> list[Mapping[str, Any]]:
        """Return every request so far, oldest first, as the control endpoint tells it."""
        found: list[Mapping[str, Any]] = self._order("GET", "log")
        return found

    def reset(self) -> None:
        """Disarm every fault, empty the log and the store."""
        self._order("POST", "reset")

    def _order(self, method: str, order: str) -> Any:
        link = http.client.HTTPConnection(urlsplit(self.base_url).netloc, timeout=30)
        try:
            link.request(method, f"/_spotchaos/{order}")
            answer = link.getresponse()
            found = json.loads(answer.read())
        finally:
            link.close()
        if answer.status != http.client.OK:
            raise HarnessError(f"the S3 store refused {order}: {found['error']}")
        return found
