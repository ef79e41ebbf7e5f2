"""Runs one function of one file as a program: `python calling.py FILE NAME`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> None:
    """Load the file as its folder's scripts are loaded, and call the function."""
    file, name = sys.argv[1:3]
    sys.path[0] = str(Path(file).parent)
    runpy.run_path(file, run_name="spotchaos_program")[name]()


if __name__ == "__main__":
    main()
