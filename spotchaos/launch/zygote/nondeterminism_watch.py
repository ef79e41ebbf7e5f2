"""What packages draw while a zygote imports them: of that, all forks would have the same.

A name of the run, a number from the system, the time, a process id: a fresh process draws
them anew, and a program that finds its own name again resumes where a real one never
would. Nothing is patched that a module could keep: the interpreter's own profiler sees
every call into C. What compiled modules draw without such a call is not seen.

Standard library only, Python 3.9 and newer: `zygote_child.py`, which runs under the
program's interpreter, loads this file by its path.
"""

from __future__ import annotations

import _lsprof
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import _bootstrap_external
from typing import Any

_CLOCKS = "time|time_ns|monotonic|monotonic_ns|perf_counter|perf_counter_ns|localtime"
_SOURCES = re.compile(
    r"<built-in method (?:posix\.(?:urandom|getrandom|getppid|getpid)"
    r"|_uuid\.\w+|_ssl\.RAND_bytes|_socket\.gethostname"
    rf"|time\.(?:{_CLOCKS}|gmtime|strftime|ctime|asctime)"
    r"|(?:now|utcnow|today)(?: of .*)?)>"
    r"|<method 'seed' of 'torch\._C\.Generator' objects>"
)
# Code of Python's own that reads clocks and ids for the moment, or for what is looked at
# elsewhere: temporary names by `importing.unfit`.
_FOR_THE_MOMENT = frozenset(
    os.path.join(os.path.dirname(os.__file__), *name.split("/"))
    for name in (
        "_strptime.py",
        "calendar.py",
        "concurrent/futures/_base.py",
        "logging/__init__.py",
        "multiprocessing/process.py",
        "queue.py",
        "selectors.py",
        "subprocess.py",
        "tempfile.py",
        "threading.py",
    )
)
# What these draw names nothing that a run writes, and reaches nothing that it computes:
# the year of a copyright (lightning), what notices a fork (filelock, fsspec, joblib,
# psutil), keys of dictionaries (donfig, opentelemetry), identifiers of styles (rich),
# examples for documentation (scipy), a century (dateutil), a name of the session for a
# server (transformers), how expressions are simplified (sympy), a key (multiprocess).
HARMLESS = frozenset(
    [
        "aiohttp",
        "diffusers",
        "dateutil",
        "donfig",
        "filelock",
        "fsspec",
        "joblib",
        "lightning",
        "lightning_fabric",
        "lightning_utilities",
        "more_itertools",
        "multiprocess",
        "opentelemetry",
        "psutil",
        "pytorch_lightning",
        "rich",
        "scipy",
        "sympy",
        "transformers",
    ]
)
# These draw nothing, and are large: watching them would only take time.
_STILL = frozenset(
    [
        "PIL",
        "accelerate",
        "boto3",
        "botocore",
        "datasets",
        "huggingface_hub",
        "matplotlib",
        "mpmath",
        "networkx",
        "numpy",
        "pandas",
        "peft",
        "pyarrow",
        "safetensors",
        "sklearn",
        "spotchaos",
        "tokenizers",
        "torch",
        "torchaudio",
        "torchmetrics",
        "torchvision",
        "yaml",
    ]
)
KNOWN = HARMLESS | _STILL
# Variables that differ between the ranks of one attempt, and between the machines of one
# trial where they are set.
_OF_RANKS = re.compile(r"(?:LOCAL_|GROUP_|ROLE_)?RANK")
_OF_MACHINES = re.compile(
    r"HOSTNAME|(?:LSB_|PBS_|SLURM_)?JOB_?ID|SLURM_JOB_ID|TORCHELASTIC_RUN_ID"
)

_STANDARD = os.path.dirname(os.__file__) + os.sep
_LOADER: Any = _bootstrap_external._LoaderBasics  # type: ignore[attr-defined]
_VARIABLES: Any = type(os.environ)


class Watch:
    """Notes what packages draw while it is entered.

    Args:
        unfit: says why nothing may be forked any more; None while something may.
        has_ranks: the program has several, each with variables of its own.

    Attributes:
        drawn: what each package drew that drew anything.
    """

    def __init__(
        self, unfit: Callable[[], str | None], *, has_ranks: bool = False
    ) -> None:
        self.drawn: dict[str, str] = {}
        self._unfit = unfit
        self._is_unfit = False
        self._has_ranks = has_ranks
        self._profiler = _lsprof.Profiler(builtins=True, subcalls=True)
        # Package and name of what is being imported; no package: Python's own.
        self._stack: list[tuple[str | None, str]] = []
        self._above: dict[str, set[str]] = {}  # who imports each that is watched
        self._streams: dict[str, Any] = {}  # the global ones, as they were
        self._threads: dict[str, str] = {}
        self._place = ""
        self._exec: Any = _LOADER.exec_module
        self._read: Any = _VARIABLES.__getitem__
        self._seed: Any = None

    def __enter__(self) -> Watch:
        watch = self

        def exec_module(loader: Any, module: Any) -> None:
            watch._run(module, lambda: watch._exec(loader, module))
            if module.__name__ == "random":
                watch._watch_seeds()

        def read(variables: Any, name: Any) -> Any:
            value = watch._read(variables, name)
            if _OF_MACHINES.fullmatch(str(name)):
                watch._note_here(f"the variable {name}")
            return value

        def read_of_ranks(variables: Any, name: Any) -> Any:
            if _OF_RANKS.fullmatch(str(name)):
                watch._note_here(f"the variable {name}")
            return read(variables, name)

        _LOADER.exec_module = exec_module
        _VARIABLES.__getitem__ = read_of_ranks if self._has_ranks else read
        if "random" in sys.modules:
            self._watch_seeds()
        return self

    def __exit__(self, *exception: object) -> None:
        _LOADER.exec_module = self._exec
        _VARIABLES.__getitem__ = self._read
        if self._seed is not None:
            sys.modules["random"].Random.seed = self._seed
            self._seed = None

    def _watch_seeds(self) -> None:
        """Note who makes a stream of its own, which the system seeds without a call."""
        kind: Any = sys.modules["random"].Random
        original = self._seed = kind.seed

        def seed(stream: Any, a: Any = None, *rest: Any, **named: Any) -> None:
            if a is None:
                self._note_unseeded(sys._getframe(1))
            original(stream, a, *rest, **named)

        kind.seed = seed

    def led_by(self) -> list[str]:
        """Return the packages that drew, and what imports them: packages, modules of known ones."""
        found = set(self.drawn)
        for name in self.drawn:
            found |= self._above.get(name, set())
        return sorted(found)

    @property
    def _watched(self) -> str | None:
        """The package whose code runs now, if it is one to be watched."""
        top = self._stack[-1][0] if self._stack else None
        return None if top in KNOWN else top

    def _run(self, module: Any, execute: Callable[[], None]) -> None:
        top, name = _package_of(module), module.__name__
        if self._stack and self._stack[-1][0] == top:
            self._stack.append((top, name))
            try:
                execute()
            finally:
                self._stack.pop()
            return
        before = self._watched
        if before is not None:
            self._take(before)
            if top in HARMLESS:
                self._note_moved(before)
        is_outermost = all(above in KNOWN for above, _ in self._stack if above)
        self._stack.append((top, name))
        now = self._watched
        if now is not None:
            self._above.setdefault(now, set()).update(self._leading())
            if is_outermost:
                self._streams = dict(_global_streams())
                self._threads = _native_threads()
                self._place = os.getcwd()
            self._begin()
        try:
            execute()
        finally:
            if now is not None:
                self._take(now)
                if is_outermost:
                    self._look_around(now)
            self._stack.pop()
            if before is not None:
                # Of what was imported just now, or was moved by it without harm.
                streams = dict(_global_streams())
                self._streams = streams if top in HARMLESS else streams | self._streams
                self._begin()

    def _leading(self) -> list[str]:
        """Return what is being imported: packages, and modules of known ones."""
        return [name if top in KNOWN else top for top, name in self._stack if top]

    def _begin(self) -> None:
        try:
            self._profiler.enable()
        except ValueError:  # somebody else profiles; Python 3.12 has one place for that
            return

    def _take(self, package: str) -> None:
        """Note what the profiler saw since it began."""
        self._profiler.disable()
        entries = self._profiler.getstats()
        for source in _kept_from(entries):
            self._note(package, _short(source))
        self._profiler.clear()

    def _note(self, package: str, what: str) -> None:
        self.drawn.setdefault(package, what)

    def _note_here(self, what: str) -> None:
        if self._watched is not None:
            self._note(self._watched, what)

    def _note_unseeded(self, frame: Any) -> None:
        own = os.path.join(_STANDARD, "random.py")
        while frame is not None and frame.f_code.co_filename == own:
            frame = frame.f_back
        if frame is not None and frame.f_code.co_filename not in _FOR_THE_MOMENT:
            self._note_here("random.Random()")

    def _note_moved(self, package: str) -> None:
        for name, state in _global_streams():
            if self._streams.get(name, state) != state:
                self._note(package, f"the global stream of {name}")

    def _look_around(self, package: str) -> None:
        """Note what an import did besides; at the end of the outermost of them."""
        self._note_moved(package)
        if os.getcwd() != self._place:
            self._note(package, "the working folder")  # forks begin in their own
            os.chdir(self._place)
        for thread, name in _native_threads().items():
            if thread not in self._threads:
                self._note(package, f"the thread {name}")
        why = None if self._is_unfit else self._unfit()
        if why is not None:
            self._is_unfit = True  # who did it a second time shows without the first
            self._note(package, why)


def _package_of(module: Any) -> str | None:
    """Return the name of the package that a module belongs to; None: Python's own."""
    place = getattr(getattr(module, "__spec__", None), "origin", None) or ""
    if place.startswith(_STANDARD) and "-packages" not in place:
        return None
    name: str = module.__name__
    return name.partition(".")[0]


def _kept_from(entries: Sequence[Any]) -> list[str]:
    """Return the sources from which somebody drew who might keep it."""
    calls: dict[Any, dict[Any, int]] = {}
    times = {entry.code: entry.callcount for entry in entries}
    for entry in entries:
        for call in entry.calls or ():
            calls.setdefault(call.code, {})[entry.code] = call.callcount
    sources = [s for s in times if isinstance(s, str) and _SOURCES.match(s)]
    return [source for source in sources if _is_kept(source, calls, times)]


def _is_kept(
    source: str, calls: Mapping[Any, Mapping[Any, int]], times: Mapping[Any, int]
) -> bool:
    """Tell whether anybody drew from a source, directly or through Python's own code."""
    seen: set[Any] = set()
    left: list[Any] = [source]
    while left:
        called = left.pop()
        callers = calls.get(called, {})
        if times.get(called, 0) > sum(callers.values()):
            return True  # from code that began before we watched: a module's own
        for caller in callers:
            place = getattr(caller, "co_filename", "")
            if caller in seen or place in _FOR_THE_MOMENT:
                continue
            seen.add(caller)
            inside = place.rpartition("-packages" + os.sep)[2]
            if place.startswith((_STANDARD, "<frozen ")) and inside == place:
                left.append(caller)
            elif inside.split(os.sep)[0] not in HARMLESS:
                return True
    return False


def _global_streams() -> Iterable[tuple[str, Any]]:
    random: Any = sys.modules.get("random")
    if random is not None and hasattr(random, "getstate"):
        yield "random", random.getstate()
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None and hasattr(numpy, "get_state"):
        state = numpy.get_state(legacy=False)
        if state["bit_generator"] == "MT19937":
            inner = state["state"]
            yield "numpy", (inner["key"].tobytes(), inner["pos"])
    torch: Any = sys.modules.get("torch")
    generator = getattr(torch, "default_generator", None)
    is_whole = not getattr(getattr(torch, "__spec__", None), "_initializing", False)
    if generator is not None and is_whole and numpy is not None:
        yield "torch", hash(generator.get_state().numpy().tobytes())


def _native_threads() -> dict[str, str]:
    """Return ids and names of all threads, those that compiled modules start included.

    Those of OpenBLAS, which has several where it may use several processors, and of
    jemalloc take care of forks themselves.
    """
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        return {}
    found = {}
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/comm") as file:
                name = file.read().strip()
        except OSError:
            continue  # it has just ended
        if name != "jemalloc_bg_thd":
            found[thread] = name
    return found


def _short(code: str) -> str:
    found = re.search(r"(?:method '?)([\w.]+)", code)
    return code if found is None else f"{found[1]}()"
