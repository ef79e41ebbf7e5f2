"""Runs a program as ckpt-chaos wants it: `python told.py FOLDER PROGRAM [ARGUMENT...]`.

The program works in FOLDER, says which step it resumed from (`resumed from step N`), and
leaves its weights in `FOLDER/final.pt`. Specimens do none of that by themselves.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the program, and add what it does not say."""
    import torch

    folder, program = (Path(word).resolve() for word in sys.argv[1:3])
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    load = torch.load

    def loading(*args: Any, **kwargs: Any) -> Any:
        state = load(*args, **kwargs)
        if isinstance(state, dict) and isinstance(state.get("step"), int):
            sys.stdout.write(f"resumed from step {state['step']}\n")
            sys.stdout.flush()
        return state

    torch.load = loading
    sys.argv = [str(program), *sys.argv[3:]]
    sys.path[0] = str(program.parent)  # as Python itself does
    model = runpy.run_path(str(program), run_name="__main__")["model"]
    torch.save(model.state_dict(), folder / "final.pt")


if __name__ == "__main__":
    main()
