"""Two ranks with a loader worker each: shards by all, one asynchronous save by DCP.

Run by torchrun as `ranks.py FOLDER`.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


class Rows(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 4

    def __getitem__(self, i):
        rank = os.environ["RANK"]
        (self.folder / f"cache-{rank}-{i}").write_bytes(bytes([i]) * 5000)
        return torch.full((3,), float(i))


def main(folder):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step, _ in enumerate(torch.utils.data.DataLoader(Rows(folder), num_workers=1)):
        torch.save({"step": step, "w": torch.ones(5000)}, str(folder / f"{rank}.tmp"))
        os.replace(folder / f"{rank}.tmp", folder / f"shard-{rank}")
        dist.barrier()
    state = {"w": torch.ones(20_000) * rank}
    dcp.async_save(state, checkpoint_id=str(folder / "dcp")).result()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
