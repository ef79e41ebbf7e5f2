"""The zygote's own process: it has imported what the program imports, and forks attempts.

It runs under the program's interpreter, with the program's environment, and computes
nothing: a fork after a parallel region of OpenMP hangs. What it imports runs isolated, in
a view of its own: an import may write files and ask the network. Each request carries the
`spec` of an attempt; a forked child goes back to the machine's own mounts and carries it
out with `inside.main`, and the program runs in that child's grandchild as if a fresh
interpreter had started it.

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
import time
import types
import zipfile
from typing import Any, NoReturn

FDS = struct.Struct("4i")  # spec, control, lifeline, complaints
# Packages whose shared objects have nothing to do at the end of a process: they compute.
COMPUTING = (
    "PIL",
    "functorch",
    "lib-dynload",
    "markupsafe",
    "msgspec",
    "numpy",
    "psutil",
    "pydantic_core",
    "regex",
    "safetensors",
    "scipy",
    "tokenizers",
    "torch",
    "xxhash",
    "yaml",
)
_OF_PACKAGES = ("site-packages", "dist-packages")

_preloaded: list[types.ModuleType] = []
_handlers: dict[int, Any] = {}  # of signals, set by imports


def main(connection: socket.socket) -> None:
    """Preload, then fork an attempt for each request until the harness is gone."""
    begin = json.loads(connection.recv(1 << 24))
    inside = _load(begin["inside"])
    folder = os.path.dirname(os.path.abspath(__file__))
    imports = _load(os.path.join(folder, "importing.py"))
    draws = _load(os.path.join(folder, "nondeterminism_watch.py"))
    guise = _load(os.path.join(folder, "process_identity.py"))
    _forget_own_folder()
    own = imports.own_at_start(begin["package"])
    if own:
        said = f"{', '.join(own)} of your own runs when the interpreter starts"
        _say(connection, reason=said)
        return
    try:
        home = imports.isolate(inside, begin["isolation"])
    except OSError as error:
        _say(connection, reason=f"imports cannot be isolated: {error}")
        return
    if begin["folder"] is not None:
        os.chdir(begin["folder"])  # which imports may ask for, and look into
    sys.argv, sys.orig_argv = list(begin["argv"]), list(begin["command"])
    warm = _probe(begin["package"])
    before, had = dict(os.environ), imports.descriptors()
    # A job in the background ignores SIGINT from its start: no attempt does.
    _fresh_signals()
    dispositions = imports.dispositions()
    watch = draws.Watch(lambda: imports.unfit(had), has_ranks=begin["has_ranks"])
    with watch:
        failed = imports.preload(begin["modules"])
        rest = connection.recv(1 << 24)
        if not rest:
            return  # nobody wants it
        failed += imports.preload(json.loads(rest)["modules"])
    # Variables that imports set, which an import that is done already sets no more.
    changed = _changes(before, dict(os.environ))
    reason = imports.unfit(had) or imports.hidden_in(begin["beside"])
    # Likewise handlers, which a program has from its imports on.
    found = imports.dispositions().items()
    _handlers.update((n, h) for n, h in found if h is not None and dispositions[n] != h)
    # What imports keep of the standard streams serves the forks: nothing may be in them.
    _flush()
    _preloaded.extend(m for m in sys.modules.values() if m not in (sys, builtins))
    gc.collect()
    gc.freeze()
    # Attempts end without anybody waiting for them here.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    drew = {"drawn": watch.drawn, "led_by": watch.led_by()}
    _say(connection, reason=reason, failed=failed, **drew)
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
            request = {**json.loads(content), "changed": changed}
            _carry_out(inside, home, warm, guise, request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(json.dumps({"pid": pid}).encode())


def _changes(
    before: dict[str, str], after: dict[str, str]
) -> dict[str, list[str | None]]:
    """Return what variables were and became, where imports changed them."""
    return {
        name: [before.get(name), after.get(name)]
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    }


def _with_changes(
    environment: dict[str, str], changed: dict[str, list[str | None]]
) -> dict[str, str]:
    """Return variables as imports leave them, of those that were for them what they are."""
    found = dict(environment)
    for name, (before, after) in changed.items():
        if found.get(name) == before:
            found.pop(name, None)
            if after is not None:
                found[name] = after
    return found


def _say(connection: socket.socket, *, reason: str | None, **more: Any) -> None:
    said = {"ready": reason is None, "reason": reason, **more}
    connection.send(json.dumps(said).encode())


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
    folder = os.path.dirname(os.path.abspath(__file__))
    if sys.path and sys.path[0] == folder:
        del sys.path[0]
    for place in (folder, __file__):
        sys.path_importer_cache.pop(place, None)


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


def _carry_out(
    inside: Any,
    home: Any,
    warm: Any,
    guise: Any,
    request: dict[str, Any],
    descriptors: tuple[int, ...],
) -> NoReturn:
    """Be the first process of one attempt."""
    described, control, lifeline, complaints = descriptors
    status = 1
    try:
        os.setsid()
        os.dup2(complaints, 1)
        os.dup2(complaints, 2)
        os.close(complaints)
        home.go_back()
        with os.fdopen(described) as file:
            spec = json.load(file)
        spec.update(control=control, lifeline=lifeline, harness=os.getppid())
        started = request["started"]

        def body(environment: dict[str, str]) -> None:
            guise.put_on(started["command"], environment, started["name"])
            _become(started, _with_changes(environment, request["changed"]), warm)

        status = inside.main(spec, body=body)
    finally:
        os._exit(status)


# --- the program -----------------------------------------------------------------------


def _fresh_signals() -> None:
    """React to signals as an interpreter does that was started with none ignored."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGPIPE", "SIGXFSZ"):  # an interpreter ignores them from its start
        signal.signal(getattr(signal, name), signal.SIG_IGN)


def _become(
    started: dict[str, Any],
    environment: dict[str, str],
    warm: Any,
) -> NoReturn:
    """Run the program as a fresh interpreter would, and end as one would."""
    _close_ours()
    os.environ.clear()
    os.environ.update(environment)
    _fresh_chance()
    sys.argv = list(started["argv"])
    sys.orig_argv = list(started["command"])
    _fresh_signals()
    for number, handler in _handlers.items():
        signal.signal(number, handler)
    _fresh_main_thread()
    module = types.ModuleType("__main__")
    module.__dict__.update(__annotations__={}, __builtins__=builtins)
    sys.modules["__main__"] = module
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = module
    status = 0
    try:
        _begin_program(started, module, environment["SPOTCHAOS_ORDERS"], warm)
    except SystemExit as exit_:
        status = _exit_status(exit_.code)
    except KeyboardInterrupt:
        _report(sys.exc_info())
        _die_of_interrupt()
    except BaseException:
        _report(sys.exc_info())
        status = 1
    del module  # or it would be emptied before what it holds is finalised
    _end(status)


def _begin_program(
    started: dict[str, Any], module: types.ModuleType, orders: str, warm: Any
) -> None:
    """Do what `pymain_run_python` in CPython's `Modules/main.c` does."""
    is_safe = getattr(sys.flags, "safe_path", False)  # Python 3.11
    if started["module"] is not None:
        if not is_safe:
            sys.path.insert(0, os.getcwd())
        warm.begin(orders, started["command"])
        runpy._run_module_as_main(started["module"])  # type: ignore[attr-defined]
        return
    path = os.path.join(os.getcwd(), started["script"])
    if os.path.isdir(path) or zipfile.is_zipfile(path):
        sys.path.insert(0, path)
        warm.begin(orders, started["command"])
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        return
    if not is_safe:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    warm.begin(orders, started["command"])
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        program = started["command"][0]
        sys.stderr.write(
            f"{program}: can't open file {path!r}:"
            f" [Errno {error.errno}] {error.strerror}\n"
        )
        raise SystemExit(2) from None
    _run_script(path, source, module)


def _end(status: int) -> NoReturn:
    """End as the interpreter does, but for tearing down what the zygote imported.

    That frees some hundred thousand objects that the program never saw, each in a page
    that has to be copied first: more than the training of a small program costs. All
    that the program itself made goes the usual way, so that its files are flushed and
    its finalizers run.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_preloaded))
    kept = set(map(id, _preloaded)) - {id(sys.modules["__main__"])}
    for name in [n for n, module in sys.modules.items() if id(module) in kept]:
        del sys.modules[name]
    libc: Any = ctypes.CDLL(None)
    if hasattr(libc, "on_exit") and _only_computes():
        # Handlers run last come, first served: no destructor of a library runs.
        libc.fflush(None)
        libc.on_exit(libc._exit, None)
    ctypes.pythonapi.Py_Exit(status)
    raise AssertionError("Py_Exit returned")


def _only_computes() -> bool:
    """Tell whether no library of this process is known to do work at its end."""
    with open("/proc/self/maps") as file:
        paths = {line.rstrip().partition("/")[2] for line in file if ".so" in line}
    for path in paths:
        parts = path.split("/")
        packages = [i for i, part in enumerate(parts) if part in _OF_PACKAGES]
        if packages:
            if parts[packages[-1] + 1].partition(".")[0] not in COMPUTING:
                return False
        elif not f"/{path}".startswith(("/lib", "/usr/lib", f"{sys.base_prefix}/")):
            return False
    return True


def _close_ours() -> None:
    """Close what the processes before this one held; a program starts with three."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                continue  # the listing's own


def _run_script(path: str, source: bytes, module: types.ModuleType) -> None:
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


def _fresh_chance() -> None:
    """Give what a fresh process draws from the system a new start."""
    for name, variable, value in (
        ("tempfile", "tempdir", None),
        ("platform", "_uname_cache", None),  # the name of another machine
        ("logging", "_startTime", _now_of_logging()),
    ):
        module = sys.modules.get(name)
        if module is not None:
            vars(module)[variable] = value
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        configured = process.current_process()._config
        configured["authkey"] = process.AuthenticationString(os.urandom(32))
    random = sys.modules.get("random")
    if random is not None:
        random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def _now_of_logging() -> float:
    """Return the time as `logging` writes down when it was imported."""
    if sys.version_info >= (3, 13):
        return time.time_ns()
    return time.time()  # noqa: TID251 - the program's own time, not ours


def _fresh_main_thread() -> None:
    """Let `threading` know the thread that it finds itself in: not the zygote's."""
    main = threading.main_thread()
    if hasattr(main, "_set_native_id"):
        main._set_native_id()


def _exit_status(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    _flush()
    sys.stderr.write(f"{code}\n")
    return 1


def _flush() -> None:
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except Exception:
            continue  # closed, or set to something else: the interpreter does not mind


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
    _flush()
    sys.excepthook(kind, value, trace)


def _die_of_interrupt() -> None:
    """End as a fresh interpreter does after Ctrl-C: by the signal itself."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
