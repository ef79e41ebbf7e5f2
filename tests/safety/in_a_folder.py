"""Two attempts of a small program in a folder, under mechanisms that are named.

    python in_a_folder.py FOLDER MECHANISMS

Run by whichever user, in whatever mounts, a test has prepared; prints JSON.
"""

import dataclasses
import json
import os
import shutil
import sys
import threading
from pathlib import Path

from spotchaos.launch.mechanisms import Mechanisms, find_mechanisms
from spotchaos.launch.program import Program
from spotchaos.launch.starting import launch
from spotchaos.launch.workspace import Workspace

# What `python train.py` does in such a folder without us, and must do in an attempt.
PROGRAM = """
import json, os, stat, sys
number = int(sys.argv[1])
seen = {}
for name in sorted(os.listdir(".")):
    status = os.lstat(name)
    seen[name] = stat.filemode(status.st_mode)[0]
    if stat.S_ISREG(status.st_mode) and os.access(name, os.R_OK):
        seen[name] += open(name).read()
    if stat.S_ISDIR(status.st_mode) and os.access(name, os.R_OK | os.X_OK):
        seen[name] += ",".join(sorted(os.listdir(name)))
os.makedirs("ckpt", exist_ok=True)
with open("ckpt/new", "w") as file:
    file.write(str(number))
os.replace("ckpt/new", f"ckpt/{number}")
with open("log.txt", "a") as file:
    file.write(f"{number};")
open(os.environ["TMPDIR"] + "/x", "w").close()
print(json.dumps(seen))
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
    said = []
    with Workspace(Path(folder), mechanisms=mechanisms_named(name)) as workspace:
        doomed = os.environ.get("DOOMED")
        if doomed:  # an entry of /tmp that somebody else deletes meanwhile
            shutil.rmtree(doomed)
        view = workspace.view("trial")
        for number in (1, 2):
            program = Program((sys.executable, "-I", "-c", PROGRAM, str(number)), folder=Path(folder))
            attempt = launch(program, view, number=number, orders={})
            event = attempt.wait(60)
            attempt.reclaim()
            said.append([repr(event), attempt.output_tail])
            attempt.close()
        changed = [c.path for c in view.changed()]
        ours = getattr(workspace, "limits", ())
        copied = view.copy("other")
        again = [c.path for c in copied.changed()]
        view.lose_machine()
        kept = [c.path for c in view.changed()]
    print(json.dumps({"said": said, "changed": changed, "kept": kept, "copied": again, "limits": list(ours)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
