"""Runs one function of one file as a rank: `python rank_main.py FILE NAME RETURNED`."""

from __future__ import annotations

import faulthandler
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Join the process group, call the function, save what it returned."""
    faulthandler.enable()  # SIGABRT tells where a hanging rank waits
    file, name, returned = sys.argv[1:4]
    sys.path[0] = str(Path(file).parent)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    function = runpy.run_path(file, run_name="spotchaos_program")[name]
    dist.init_process_group("gloo")
    try:
        torch.save(function(), returned)
        dist.barrier()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
