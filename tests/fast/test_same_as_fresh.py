"""A program forked from a zygote is the program that a fresh interpreter starts."""

import difflib
import os
import re
import textwrap

import pytest


def assert_same(forked, fresh):
    ours, theirs = (re.sub("0x[0-9a-f]+", "0x...", e.output) for e in (forked, fresh))
    lines = difflib.unified_diff(
        theirs.splitlines(), ours.splitlines(), "fresh", "forked", n=0
    )
    assert (forked.status, list(lines)) == (fresh.status, [])


SEES = """
    import sys, os, json
    seen = {
        "argv": sys.argv, "orig": sys.orig_argv, "path": sys.path, "cwd": os.getcwd(),
        "name": __name__, "file": __file__, "flags": str(sys.flags),
        "package": __package__, "spec": getattr(__spec__, "name", None),
        "main": sorted(vars(sys.modules["__main__"])), "mine": sorted(globals()),
        "is_main": sys.modules["__main__"].__dict__ is globals(),
        "cached": __cached__, "doc": __doc__, "loader": type(__loader__).__name__,
        "executable": sys.executable, "prefix": sys.prefix, "xoptions": sys._xoptions,
        "warn": sys.warnoptions, "bytecode": sys.dont_write_bytecode,
        "debug": __debug__, "utf8": sys.flags.utf8_mode,
    }
    for key, value in seen.items():
        print(key, value)
"""
ENVIRONMENT = """
    import os, json
    own = dict(os.environ)
    own.pop("SPOTCHAOS_ORDERS")
    own.pop("LC_CTYPE", None)  # an interpreter coerces the C locale for itself
    print(sorted(own.items()))
    print(os.environ.get("MINE"), os.getenv("PYTHONHASHSEED"), hash("a"), hash(b"b"))
    import subprocess
    print(subprocess.run(["sh", "-c", "echo $MINE"], capture_output=True, text=True))
"""
STREAMS = """
    import sys, os, io
    for s in (sys.stdin, sys.stdout, sys.stderr):
        sys.stderr.write(repr((s.name, s.mode, s.encoding, s.errors, s.line_buffering,
            s.write_through, s.isatty(), s.fileno(), s.newlines, type(s).__name__,
            type(s.buffer).__name__, type(getattr(s.buffer, "raw", s.buffer)).__name__)) + "\\n")
    print("is original:", [getattr(sys, "__%s__" % n) is getattr(sys, n)
                           for n in ("stdin", "stdout", "stderr")])
    print("read:", repr(sys.stdin.read()))
    sys.stdout.write("out 1; ")
    sys.stderr.write("err 1; ")
    print("out 2")
    print("err 2", file=sys.stderr)
    os.write(1, b"straight\\n")
"""
DESCRIPTORS = """
    import os, json
    seen = {}
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        if "spotchaos-spec" in target:
            continue  # of the first process of a fresh attempt
        kind = target.partition(":")[0] if not target.startswith("/") else target
        # The probe's own are named by chance; a fresh process has them as well.
        kind = os.path.basename(kind).rpartition(".")[2]
        seen.setdefault((kind, os.get_inheritable(int(name))), []).append(name)
    print(*sorted((kind, len(names)) for kind, names in seen.items()), sep="\\n")
"""
SIGNALS = """
    import signal, json
    print({n.name: str(signal.getsignal(n)) for n in sorted(signal.valid_signals())
           if isinstance(n, signal.Signals)})
    print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.set_wakeup_fd(-1))
    print([l for l in open("/proc/self/status") if l.startswith(("SigBlk", "SigIgn"))])
    print([l for l in open("/proc/self/status") if l.startswith("SigCgt")])
    import subprocess
    print(subprocess.run(["grep", "Sig[BI]", "/proc/self/status"], capture_output=True, text=True))
"""
GROUPS = """
    import os, resource, sys
    print(os.getpid() == os.getpgrp() == os.getsid(0), os.getpid(), os.getppid())
    print([(n, resource.getrlimit(getattr(resource, n))) for n in sorted(dir(resource))
           if n.startswith("RLIMIT_")])
    print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0), oct(os.umask(0)))
    print(os.getuid(), os.getgid(), os.nice(0), os.getcwd())
    keep = ("NoNewPrivs", "Seccomp:", "Cap", "Uid", "Gid", "Groups", "CoreDumping",
            "THP_enabled", "NSpid", "Threads")
    print([l for l in open("/proc/self/status") if l.startswith(keep)])
    print(open("/proc/self/coredump_filter").read(), open("/proc/self/oom_score_adj").read())
"""
PICKLES = """
    import pickle, sys, multiprocessing
    class Thing:
        def __init__(self, n): self.n = n
        def __eq__(self, other): return self.n == other.n
    def work(thing):
        return Thing(thing.n + 1)
    if __name__ == "__main__":
        text = pickle.dumps(Thing(1), protocol=0)
        print(text.decode(), pickle.loads(text) == Thing(1), Thing.__module__)
        for method in ("fork", "spawn", "forkserver"):
            with multiprocessing.get_context(method).Pool(1) as pool:
                print(method, pool.map(work, [Thing(1), Thing(2)])[1].n, flush=True)
    else:
        print("imported as", __name__, flush=True)
"""
PICKLES_OF_MODULE = {
    "pack/__init__.py": "print('pack', __name__, flush=True)\n",
    "pack/__main__.py": "from . import other\nfrom .other import work, Thing\n"
    """
import multiprocessing, pickle, sys
class Local: pass
def local(x): return type(x).__module__
if __name__ == "__main__":
    print(sys.argv, __package__, __spec__.name, __spec__.parent, __file__, __loader__.path)
    print(pickle.dumps(Local(), protocol=0).decode())
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [Thing()]))
""",
    "pack/other.py": "class Thing: pass\ndef work(x): return type(x).__module__\n",
}
ATEXIT = """
    import atexit, threading, weakref, gc, sys
    class Late:
        def __del__(self): print("late", flush=True)
    atexit.register(print, "atexit 1")
    atexit.register(print, "atexit 2")
    lot = Late()
    def work():
        threading.main_thread().join()
        print("thread goes on past main")
    threading.Thread(target=work).start()
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    unflushed = open("/dev/stderr", "w")
    unflushed.write("flushed at the end\\n")
    print(threading.main_thread().name, threading.current_thread() is threading.main_thread(),
          threading.active_count(), threading.main_thread().native_id)
    weakref.finalize(lot, print, "finalized")
    print("end of main")
"""
IMPORTS = {
    "beside.py": "print('beside is imported', __name__)\nstate = []\n",
    "prog.py": """
        import sys
        print("beside" in sys.modules)
        import beside
        beside.state.append(1)
        print(beside.state, beside.__file__)
        try:
            from . import nothing
        except ImportError as error:
            print(type(error), error)
    """,
}
RANDOM = """
    import random, tempfile, os, warnings, time
    random.seed(5); print(random.random(), tempfile.gettempdir() == os.environ["TMPDIR"])
    print(list({"a", "b", "c", "d"}), hash(("x", 1)))
    warnings.warn("careful"); warnings.warn("old", DeprecationWarning)
    import logging; logging.warning("seen")
    print(warnings.filters[:2], time.tzname, gc_state())
""".replace(
    "gc_state()", "__import__('gc').isenabled(), __import__('gc').get_threshold()"
)
ASSERTS = """
    import helper_with_assert
    try:
        assert False, "asserted"
        print("asserts are off")
    except AssertionError as error:
        print("asserts are on", error)
    def f():
        "doc"
    print(f.__doc__, __debug__, __import__("sys").flags.optimize)
    try:
        b"x" == "x"
    except BytesWarning as error: print(error)
    import warnings; warnings.warn("deprecated", DeprecationWarning)
"""
CRASH = """
    def inner():
        raise ValueError("broken")
    def outer():
        try:
            inner()
        except ValueError as error:
            raise RuntimeError("outer") from error
    outer()
"""
HOOKED = """
    import sys
    def hook(kind, value, trace):
        print("hooked", kind.__name__, value, trace.tb_lineno, trace.tb_frame.f_code.co_name)
    sys.excepthook = hook
    raise KeyError("lost")
"""
EXECS = """
    import os, sys
    if len(sys.argv) == 1:
        sys.stdout.write("before exec; "); sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, sys.argv[0], "again"])
    print("after exec", sys.argv[1:], "json" in sys.modules)
"""
FORKS = """
    import os, sys
    print("once", end="; ")
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        print("child")
        sys.exit(4)
    print("child ended with", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    print(os.popen("echo a shell").read(), os.system("exit 3") >> 8)
"""
CHANGES_ENVIRONMENT = """
    import os, sys
    os.environ["MADE"] = "1"
    os.chdir("/")
    sys.path.insert(0, "/nowhere")
    os.umask(0o77)
    print(os.environ["MADE"], os.getcwd(), sys.path[0], os.popen("echo $MADE").read())
"""
ASYNCIO = """
    import asyncio, concurrent.futures
    async def main():
        loop = asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            print(await loop.run_in_executor(pool, sum, [1, 2]))
        process = await asyncio.create_subprocess_exec("true")
        return await process.wait()
    print(asyncio.run(main()))
"""
OF_ITSELF = """
    import os, sys
    def words(name):
        return open("/proc/self/" + name, "rb").read().split(b"\\0")
    print(words("cmdline"), open("/proc/self/comm").read(), os.readlink("/proc/self/exe"))
    print([w for w in words("environ") if not w.startswith((b"SPOTCHAOS_", b"LC_CTYPE"))])
    print(os.popen("tr '\\\\0' ' ' < /proc/$PPID/cmdline").read())
"""
STATE = """
    import sys, gc, threading, signal, locale, decimal, contextvars, multiprocessing
    import os, resource, time, logging, platform, socket, faulthandler, tempfile, atexit
    def is_of_this_process(then):
        started = int(open("/proc/self/stat").read().rpartition(") ")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
        return time.time() - then < age + 0.1
    print(sys.getswitchinterval(), sys.getrecursionlimit(), threading.stack_size(),
          sys.gettrace(), sys.getprofile(), sys.get_int_max_str_digits(), sys.platlibdir,
          sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook,
          sys.breakpointhook, sys._base_executable, sys.pycache_prefix, sys.flags.int_max_str_digits)
    print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks, gc.garbage)
    print(locale.setlocale(locale.LC_ALL), decimal.getcontext(), len(list(contextvars.copy_context())))
    print(signal.getitimer(signal.ITIMER_REAL), faulthandler.is_enabled(), time.tzname)
    print(time.process_time() < 1.5, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime,
          is_of_this_process(logging._startTime), logging.root.handlers, logging.root.level,
          logging.raiseExceptions, logging._levelToName)
    print(platform.node() == socket.gethostname(), tempfile.tempdir, tempfile._name_sequence)
    print(multiprocessing.get_start_method(allow_none=True), multiprocessing.current_process(),
          multiprocessing.active_children(), multiprocessing.parent_process(),
          next(multiprocessing.process._process_counter))
    print([p for p in sys.path_importer_cache if "zygote" in p or "launch" in p],
          sys.meta_path[2:], sys.path_hooks)
"""
TORCH = """
    import torch
    print(torch.get_num_threads(), torch.get_num_interop_threads(), torch.get_default_dtype(),
          torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(),
          torch.backends.mkldnn.enabled, torch.get_float32_matmul_precision(),
          torch.multiprocessing.get_sharing_strategy(), torch.is_inference_mode_enabled())
    torch.set_num_interop_threads(2); torch.set_num_threads(2)
    print(torch.get_num_threads(), torch.get_num_interop_threads(), torch.ones(10**6).sum())
"""
PROGRAMS = {
    "command line and variables in /proc": OF_ITSELF,
    "state of the interpreter": STATE,
    "torch's own state": TORCH,
    "names, paths and flags": SEES,
    "environment": ENVIRONMENT,
    "standard streams": STREAMS,
    "open descriptors": DESCRIPTORS,
    "signal dispositions": SIGNALS,
    "groups, limits and rights": GROUPS,
    "classes of __main__ in other processes": PICKLES,
    "end of threads, files and handlers": ATEXIT,
    "user modules and relative imports": IMPORTS,
    "seeds, warnings and logging": RANDOM,
    "exception with a cause": CRASH,
    "exception hook": HOOKED,
    "exec": EXECS,
    "fork": FORKS,
    "own changes to process state": CHANGES_ENVIRONMENT,
    "event loop": ASYNCIO,
    "nothing": "",
    "syntax error": "x = 1\nif x\n    y\n",
    "encoding comment": "# -*- coding: latin-1 -*-\nprint('ok')\n",
    "future annotations": "from __future__ import annotations\ndef f(x: nope): pass\nprint(f.__annotations__)\n",
    "no future of ours": "def f(x: int): pass\nprint(f.__annotations__, f.__code__.co_flags)\n",
    "exit None": "import sys; print('x'); sys.exit()",
    "exit 7": "import sys; print('x'); sys.exit(7)",
    "exit 256": "import sys; sys.exit(256)",
    "exit -1": "import sys; sys.exit(-1)",
    "exit True": "import sys; sys.exit(True)",
    "exit text": "import sys; print('out'); sys.exit('a reason')",
    "exit object": "import sys; sys.exit([1, 2])",
    "exit without handlers": "import os, sys; sys.stdout.write('lost'); os._exit(3)",
    "exit in handler": "import atexit, sys; atexit.register(lambda: 1 / 0); sys.exit(2)",
    "system exit subclass": "class E(SystemExit): pass\nraise E(9)",
    "interrupt": "import os, signal, time\nprint('x')\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)",
    "raised interrupt": "raise KeyboardInterrupt",
    "terminate": "import os, signal, time\nprint('lost')\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(9)",
    "abort": "import os; os.abort()",
    "broken pipe": "import os, sys\nr, w = os.pipe()\nos.close(r)\nos.write(w, b'x')",
    "closed output": "import sys\nprint('x')\nsys.stdout.close()",
    "recursion": "import sys\nprint(sys.getrecursionlimit())\ndef f(): f()\ntry:\n    f()\nexcept RecursionError: print('deep')",
    "exception in thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='worker')\nt.start(); t.join(); print('on')",
    "unraisable": "class A:\n    def __del__(self): 1 / 0\na = A(); del a; print('on')",
    "last exception": "import atexit, sys\natexit.register(lambda: print(sys.last_type, sys.last_value))\n1 / 0",
    "source of frames": "import traceback, inspect\ndef f():\n    print(inspect.stack()[0].code_context)\n    traceback.print_stack(limit=2)\nf()",
    "module attribute of main": "import __main__\nx = 3\nprint(__main__.x, __main__.__file__)",
    "finalizers": "import os, torch\nclass A:\n    def __del__(self): os.write(1, b'bye %d\\n' % self.x.numel())\na, b = A(), A()\na.x = b.x = torch.ones(3)\nb.me = b",
    "buffer of C": "import ctypes\nctypes.CDLL(None).printf(b'from C\\n')",
    "output gone": "import os\nprint('x')\nos.close(1)\nos.close(2)",
    "no output": "import sys\nprint('x')\nsys.stdout = None",
    "modules at the end": "import atexit, sys, torch\natexit.register(lambda: print('torch' in sys.modules, sys.modules['__main__'].x))\nx = 5",
    "argument parser": "import argparse\nargparse.ArgumentParser().parse_args()",
}

ARGUMENTS = {
    "names, paths and flags": ("one", "--two=3", ""),
    "argument parser": ("--unknown",),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_script_is_the_same_forked_and_fresh(run_both, python, name):
    fresh, forked = run_both(
        PROGRAMS[name], [python, "prog.py", *ARGUMENTS.get(name, ())]
    )
    assert_same(forked, fresh)


COMMANDS = {
    "absolute script": (SEES, ["{python}", "{folder}/prog.py"]),
    "script in a folder": (
        {"sub/prog.py": SEES},
        ["{python}", "sub/../sub/prog.py", ""],
    ),
    "dotted script": (SEES, ["{python}", "./prog.py", "-x"]),
    "module": ({"mod.py": SEES}, ["{python}", "-m", "mod", "a", "-m", "b"]),
    "package": (PICKLES_OF_MODULE, ["{python}", "-m", "pack", "z"]),
    "module in a package": ({"pack/inner.py": SEES}, ["{python}", "-m", "pack.inner"]),
    "no such module": ({}, ["{python}", "-m", "nothing_of_the_kind"]),
    "no such script": ({}, ["{python}", "nothing.py"]),
    "folder as script": ({"app/__main__.py": SEES}, ["{python}", "app", "x"]),
    "console script": (
        {"tool": "#!{python}\n" + SEES.replace("\n    ", "\n")},
        ["./tool", "q"],
    ),
    "unbuffered": (STREAMS, ["{python}", "-u", "prog.py"]),
    "unbuffered flags": (SEES, ["{python}", "-u", "prog.py"]),
    "optimized": (
        {"prog.py": ASSERTS, "helper_with_assert.py": "assert False\n"},
        ["{python}", "-O", "prog.py"],
    ),
    "twice optimized": (
        {"prog.py": ASSERTS, "helper_with_assert.py": "assert False\n"},
        ["{python}", "-OO", "prog.py"],
    ),
    "warnings on": (
        {"prog.py": ASSERTS, "helper_with_assert.py": ""},
        ["{python}", "-Walways", "prog.py"],
    ),
    "warnings are errors": (
        {"prog.py": ASSERTS, "helper_with_assert.py": ""},
        ["{python}", "-Werror", "prog.py"],
    ),
    "options": (SEES, ["{python}", "-Xdev", "-B", "prog.py"]),
    "options with words of their own": (
        SEES,
        ["{python}", "-W", "ignore", "-uB", "-X", "mine=3", "prog.py"],
    ),
    "utf-8 mode": (SEES, ["{python}", "-Xutf8=1", "prog.py"]),
    "name of a console script": (
        {"longer-than-15-bytes": "#!{python}\n" + OF_ITSELF.replace("\n    ", "\n")},
        ["./longer-than-15-bytes", "q"],
    ),
    "safe path of module": ({"mod.py": SEES}, ["{python}", "-P", "-m", "mod"]),
    "isolated site": (SEES, ["{python}", "-s", "prog.py"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_command_is_the_same_forked_and_fresh(run_both, place, python, name):
    files, command = COMMANDS[name]
    folder = str(place[0].folder)
    if not isinstance(files, str):
        files = {n: text.replace("{python}", python) for n, text in files.items()}
    words = [w.replace("{python}", python).replace("{folder}", folder) for w in command]
    fresh, forked = run_both(files, words)
    assert_same(forked, fresh)


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONUNBUFFERED": "1"},
        {"PYTHONIOENCODING": "latin-1:replace"},
        {"PYTHONUTF8": "1"},
        {"PYTHONOPTIMIZE": "1"},
        {"PYTHONWARNINGS": "error::DeprecationWarning"},
        {"PYTHONPATH": "/nowhere:/else"},
        {"LC_ALL": "C"},
        {"MINE": "a b"},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_variables_act_the_same_forked_and_fresh(run_both, python, variables):
    source = f"{SEES}\n{STREAMS}\n{ENVIRONMENT}"
    fresh, forked = run_both(source, [python, "prog.py"], **variables)
    assert_same(forked, fresh)


@pytest.mark.parametrize(
    "command", [["python", "prog.py", "x"], ["./tool", "x"]], ids=["word", "script"]
)
def test_interpreter_found_on_path_is_the_same_forked_and_fresh(
    run_both, python, command
):
    source = textwrap.dedent(SEES + OF_ITSELF)
    files = {"prog.py": source, "tool": f"#!/usr/bin/env python\n{source}"}
    path = f"{os.path.dirname(python)}:{os.defpath}"
    fresh, forked = run_both(files, command, PATH=path)
    assert_same(forked, fresh)
