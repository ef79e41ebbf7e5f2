"""What a package draws when it is imported, each attempt draws anew; others are forked."""

import os
import sys

import pytest

from spotchaos.errors import HarnessError
from spotchaos.launch.attempt.attempt import Exited
from spotchaos.launch.attempt.starting import launch
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.zygote.forkable import start_of
from spotchaos.launch.zygote.zygote import Warm, raised_for

BOUND_S = 60.0
DRAWING = {
    "a_uuid": "import uuid\nRUN = uuid.uuid4().hex\n",
    "in_a_class": "import secrets\nclass Config:\n    run = secrets.token_hex(4)\n",
    "in_a_closure": "import os\ndef make(n=os.urandom(4)):\n    return n\n",
    "the_time": "import time\nSTARTED = time.time()\n",
    "a_date": "from datetime import datetime as d\nRUN = f'run-{d.now():%H%M%S}'\n",
    "its_pid": "import os\nLOCK = f'lock.{os.getpid()}'\n",
    "the_host": "import socket\nHOST = socket.gethostname()\n",
    "the_job": "import os\nJOB = os.environ.get('SLURM_JOB_ID', 'none')\n",
    "the_global_stream": "import random\nRUN = random.randrange(10**9)\n",
    "a_stream": "import random\nSTREAM = random.Random()\n",
    "through_another": "from draws_for_others import name\nRUN = name()\n",
    "imports_one": "import a_uuid\n",
    "a_native_thread": "import _thread, time\n_thread.start_new_thread(time.sleep, (600,))\n",
    "elsewhere": "import os\nos.chdir('/usr')\n",
    "a_thread": "import threading\nthreading.Thread(target=threading.Event().wait,"
    " daemon=True).start()\n",
}
STILL = {
    "draws_for_others": "import uuid\ndef name():\n    return uuid.uuid4().hex\n",
    "seeded": "import random\nSTREAM = random.Random(3)\nFIRST = STREAM.random()\n",
    "logs": "import logging\nlogging.getLogger('x').warning('imported')\n",
    "of_ranks": "import os\nRANK = int(os.environ.get('RANK', 0))\n",
    "imports_python": "import multiprocessing, tempfile, random, uuid, asyncio\n",
    "fails": "import time\ntry:\n    import nothing_at_all\nexcept ImportError:\n    pass\n",
}
SAYS = "import sys; print(*(n for n in {names!r} if n in sys.modules))\n"
# As an interpreter has them: nothing that watched imports is left behind.
PATCHED = """
import os, random, sys
from importlib import _bootstrap_external as b
print(random.Random.seed.__code__.co_filename == random.__file__,
      "draws" in type(os.environ).__getitem__.__code__.co_filename,
      "importlib" in b._LoaderBasics.exec_module.__code__.co_filename, sys.getprofile())
"""


@pytest.fixture
def packages(tmp_path):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    for name, source in {**DRAWING, **STILL}.items():
        (folder / f"{name}.py").write_text(source)
    return folder


@pytest.fixture
def raise_zygote(place, packages):
    workspace, _ = place
    raised = []

    def raise_zygote(*modules, ranks=None):
        command = (sys.executable, "prog.py")
        own = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        own |= {"PYTHONPATH": str(packages), "SLURM_JOB_ID": "7"}
        program = Program(command, workspace.folder, environment=own, ranks=ranks)
        start = start_of(command, own, workspace.folder)
        raised.append(raised_for(program, start, workspace, modules))
        return program, Warm(raised[-1], start)

    yield raise_zygote
    for zygote in raised:
        zygote.close()


@pytest.fixture
def run(place):
    def run(source, program, warm):
        (place[0].folder / "prog.py").write_text(source)
        view = place[0].view("draws")
        attempt = launch(program, view, number=1, orders={}, warm=warm)
        try:
            assert attempt.wait(BOUND_S) == Exited(0), attempt.output_tail
            return attempt.output_tail
        finally:
            attempt.close()
            view.close()

    return run


def test_packages_that_draw_are_left_to_each_attempt(raise_zygote, run):
    names = [*DRAWING, *STILL]
    program, warm = raise_zygote(*names)
    assert run(SAYS.format(names=names), program, warm).split() == list(STILL)
    assert run(PATCHED, program, warm) == "True False True None"
    drawn = "import a_uuid; print(a_uuid.RUN)"
    assert run(drawn, program, warm) != run(drawn, program, warm)


def test_what_ranks_read_at_import_is_left_to_each_of_them(raise_zygote, run):
    program, warm = raise_zygote("of_ranks", "seeded", ranks=2)
    assert warm.zygote.failed == ()
    single = Program(program.command, program.folder, environment=program.environment)
    said = run(SAYS.format(names=["of_ranks", "seeded"]), single, warm)
    assert said == "seeded"


def test_without_torch_in_advance_nothing_is_forked(packages, raise_zygote):
    (packages / "torch.py").write_text("import a_uuid\n")
    with pytest.raises(
        HarnessError, match=r"draws anew: a_uuid \(posix\.urandom\(\)\)"
    ):
        raise_zygote("json", "torch")


def test_of_a_known_package_only_what_leads_there_is_left_out(
    packages, raise_zygote, run
):
    known = packages / "sklearn"  # by its name
    (known / "lazy").mkdir(parents=True)
    (known / "__init__.py").write_text("")
    (known / "other.py").write_text("")
    (known / "lazy" / "__init__.py").write_text("import sklearn.leads\n")
    (known / "lazy" / "below.py").write_text("")
    (known / "leads.py").write_text("import a_uuid\n")
    names = ["sklearn", "sklearn.lazy", "sklearn.lazy.below", "sklearn.other"]
    program, warm = raise_zygote(*names)
    said = run(SAYS.format(names=[*names, "sklearn.leads"]), program, warm)
    assert said == "sklearn sklearn.other"
