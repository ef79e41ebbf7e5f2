"""What a forked program finds on its command line is what a fresh one finds there."""

import sys

from spotchaos.launch.program import Program
from spotchaos.settings import Settings
from spotchaos.stage import Stage


class Zygote:
    """Serves every program; forks none."""

    def serves(self, start):
        return True


def test_the_folder_for_output_is_filled_in(place):
    workspace, _ = place
    command = (sys.executable, "prog.py", "--out", "{out}", "--also={out}/b")
    stage = Stage(
        Settings(command=command, folder=workspace.folder),
        Program(command=command, folder=workspace.folder),
        workspace,
        zygote=Zygote(),
    )
    view = workspace.view("forked")
    try:
        argv = stage.warm(command, view).start.argv
        assert argv == ("prog.py", "--out", f"{view.out}", f"--also={view.out}/b")
    finally:
        view.close()
