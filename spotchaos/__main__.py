"""`python -m spotchaos` is the command `spotchaos`."""

import contextlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # The folder is the program's: a `rich.py` in it is not the one that we mean.
    if not sys.flags.safe_path and sys.path:
        with contextlib.suppress(FileNotFoundError):  # the folder is gone
            if sys.path[0] in ("", str(Path.cwd())):
                del sys.path[0]

    from spotchaos.cli import main

    main(prog_name="spotchaos")
