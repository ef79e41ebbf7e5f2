"""Two attempts of a small program in a folder, under mechanisms that are named.

    python in_a_folder.py FOLDER MECHANISMS

Run by whichever user, in whatever mounts, a test has prepared; prints JSON.
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from spotchaos.launch.attempt.starting import launch
from spotchaos.launch.isolation.mechanisms import Mechanisms, find_mechanisms
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.isolation.workspace import Workspace

LOOK = """
import json, os, stat, sys
seen = {}
for name in sorted(os.listdir(".")):
    mode = os.lstat(name).st_mode
    seen[name] = stat.filemode(mode)[0]
    if stat.S_ISREG(mode) and os.access(name, os.R_OK):
        seen[name] += open(name).read()
    if stat.S_ISDIR(mode) and os.access(name, os.R_OK | os.X_OK):
        seen[name] += ",".join(sorted(os.listdir(name)))
print(json.dumps(seen))
"""
# What `python train.py` does in such a folder without us, and must do in an attempt.
PROGRAM = """
number = sys.argv[1]
os.makedirs("ckpt", exist_ok=True)
with open("ckpt/new", "w") as file:
    file.write(number)
os.replace("ckpt/new", f"ckpt/{number}")
with open("log.txt", "a") as file:
    file.write(f"{number};")
with open(os.environ["TMPDIR"] + "/x", "w") as file:
    file.write(number)
"""


def mechanisms_named(name):
    found = find_mechanisms()
    if name == "best":
        return found
    if name == "user":
        return dataclasses.replace(found, user_namespace=True, overlay="user")
    if name == "copy":
        return dataclasses.replace(found, overlay=None)
    return Mechanisms()


def main(folder, name):
    if name == "without-us":
        subprocess.run([sys.executable, "-I", "-c", LOOK], cwd=folder, check=True)
        return
    said = []
    with Workspace(Path(folder), mechanisms=mechanisms_named(name)) as workspace:
        doomed = os.environ.get("DOOMED")
        if doomed:  # an entry of /tmp that somebody else deletes meanwhile
            shutil.rmtree(doomed)
        view = workspace.view("trial")
        for number in (1, 2):
            command = (sys.executable, "-I", "-c", LOOK + PROGRAM, str(number))
            program = Program(command, folder=Path(folder))
            attempt = launch(program, view, number=number, orders={})
            event = attempt.wait(60)
            attempt.reclaim()
            said.append([repr(event), attempt.output_tail])
            attempt.close()
        changed = [c.path for c in view.changed()]
        copied = [c.path for c in view.copy("other").changed()]
        view.lose_machine()
        kept = [c.path for c in view.changed()]
    found = {
        "limits": workspace.limits,
        "said": said,
        "changed": changed,
        "kept": kept,
        "copied": copied,
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
