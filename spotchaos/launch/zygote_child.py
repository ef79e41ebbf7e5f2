"""The zygote's own process: it has imported what the program imports, and forks attempts.

It runs under the program's interpreter, with the program's environment, and computes
nothing: a fork after a parallel region of OpenMP hangs. Each request carries the `spec`
of an attempt; a forked child carries it out with `inside.main`, and the program runs in
that child's grandchild as if a fresh interpreter had started it.

Standard library only, Python 3.9 and newer. Run by path, with the descriptor of a
SEQPACKET socket as its one argument; the first message says what to import.

Source: what a fresh interpreter does for a script, `-m` and at its end is in CPython's
`Modules/main.c` and `Lib/runpy.py`.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import gc
import importlib
import importlib.machinery
import importlib.util
import io
import json
import os
import runpy
import signal
import socket
import struct
import sys
import threading
import types
from typing import Any, NoReturn

FDS = struct.Struct("4i")  # spec, control, lifeline, complaints


def main(connection: socket.socket) -> None:
    """Preload, then fork an attempt for each request until the harness is gone."""
    begin = json.loads(connection.recv(1 << 24))
    inside = _load(begin["inside"])
    _forget_own_folder()
    warm = _probe(begin["package"])
    failed = _preload(begin["modules"])
    reason = _unfit()
    gc.collect()
    gc.freeze()
    # Attempts end without anybody waiting for them here.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    connection.send(
        json.dumps(
            {"ready": reason is None, "reason": reason, "failed": failed}
        ).encode()
    )
    while True:
        content, ancillary, _, _ = connection.recvmsg(
            1 << 16, socket.CMSG_SPACE(FDS.size)
        )
        if not content:
            return
        descriptors = FDS.unpack(ancillary[0][2])
        pid = os.fork()
        if pid == 0:
            connection.close()
            _carry_out(inside, warm, json.loads(content), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(json.dumps({"pid": pid}).encode())


def _load(path: str) -> Any:
    name = "_spotchaos_" + os.path.basename(path).partition(".")[0]
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


def _forget_own_folder() -> None:
    """Take our own folder off `sys.path`: the program puts its own there."""
    if sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]


def _probe(package: str) -> Any:
    """Load the probe, so that its hooks are in place when modules are imported."""
    stub: Any = types.ModuleType("spotchaos")
    stub.__path__ = [package]
    sys.modules["spotchaos"] = stub
    try:
        warm = importlib.import_module("spotchaos.probe.warm")
    finally:
        del sys.modules["spotchaos"]
    warm.prepare()
    return warm


def _preload(modules: list[str]) -> list[str]:
    """Import by name, in the order of the first run; return what could not be."""
    failed = []
    null = open(os.devnull, "w")  # noqa: SIM115 - put back below
    out, err = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = null
    try:
        for name in modules:
            if name in sys.modules:
                continue
            try:
                importlib.import_module(name)
            except BaseException:
                failed.append(name)
    finally:
        sys.stdout, sys.stderr = out, err
        null.close()
    return failed


def _unfit() -> str | None:
    """Say why nothing may be forked from here; None if all is well."""
    if threading.active_count() > 1:
        names = ", ".join(thread.name for thread in threading.enumerate()[1:4])
        return f"imports started threads: {names}"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "imports initialised CUDA, which no fork survives"
    return None


def _carry_out(
    inside: Any, warm: Any, request: dict[str, Any], descriptors: tuple[int, ...]
) -> NoReturn:
    """Be the first process of one attempt."""
    described, control, lifeline, complaints = descriptors
    status = 1
    try:
        os.setsid()
        os.dup2(complaints, 1)
        os.dup2(complaints, 2)
        os.close(complaints)
        with os.fdopen(described) as file:
            spec = json.load(file)
        spec.update(control=control, lifeline=lifeline, harness=os.getppid())
        started = request["started"]

        def body(environment: dict[str, str]) -> None:
            _become(started, environment, warm)

        status = inside.main(spec, body=body)
    finally:
        os._exit(status)


# --- the program -----------------------------------------------------------------------


def _become(
    started: dict[str, Any], environment: dict[str, str], warm: Any
) -> NoReturn:
    """Run the program as a fresh interpreter would, and end as one would."""
    _close_ours()
    os.environ.clear()
    os.environ.update(environment)
    _fresh_streams(started["flags"])
    _fresh_chance()
    sys.argv = list(started["argv"])
    sys.orig_argv = list(started["command"])
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGPIPE", "SIGXFSZ"):  # an interpreter ignores them from its start
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    status = 0
    try:
        if started["module"] is not None:
            sys.path.insert(0, os.getcwd())
            warm.begin(environment["SPOTCHAOS_ORDERS"], started["command"])
            runpy._run_module_as_main(started["module"])  # type: ignore[attr-defined]
        else:
            path = os.path.abspath(started["script"])
            sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
            warm.begin(environment["SPOTCHAOS_ORDERS"], started["command"])
            _run_script(path, module)
    except SystemExit as exit_:
        status = _exit_status(exit_.code)
    except KeyboardInterrupt:
        _report(sys.exc_info())
        _die_of_interrupt()
    except BaseException:
        _report(sys.exc_info())
        status = 1
    sys.stdout.flush()
    ctypes.pythonapi.Py_Exit(status)
    raise AssertionError("Py_Exit returned")


def _close_ours() -> None:
    """Close what the processes before this one held; a program starts with three."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                continue  # the listing's own


def _run_script(path: str, module: types.ModuleType) -> None:
    with io.open_code(path) as file:
        source = file.read()
    module.__dict__.update(
        __file__=path,
        __cached__=None,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
        __spec__=None,
        __package__=None,
        __doc__=None,
    )
    code = compile(source, path, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def _fresh_streams(flags: list[str]) -> None:
    """Open the standard streams on the descriptors that they have now."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED")) or "-u" in flags
    for number, name, mode in (
        (0, "stdin", "r"),
        (1, "stdout", "w"),
        (2, "stderr", "w"),
    ):
        stream = open(  # noqa: SIM115 - they stay open to the end
            number,
            mode,
            buffering=1 if name == "stderr" or unbuffered else -1,
            closefd=False,
            errors=_errors_of(name),
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _errors_of(name: str) -> str:
    return "backslashreplace" if name == "stderr" else "strict"


def _fresh_chance() -> None:
    """Give streams that a fresh process draws from the system a new start."""
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        vars(tempfile)["tempdir"] = None
    random = sys.modules.get("random")
    if random is not None:
        random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _exit_status(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stdout.flush()
    sys.stderr.write(f"{code}\n")
    return 1


def _report(error: Any) -> None:
    """Print an exception as the interpreter would, without the frames that are ours."""
    kind, value, trace = error
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    sys.last_type, sys.last_value, sys.last_traceback = kind, value, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = value
    value.__traceback__ = trace
    sys.stdout.flush()
    sys.excepthook(kind, value, trace)


def _die_of_interrupt() -> None:
    """End as a fresh interpreter does after Ctrl-C: by the signal itself."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
