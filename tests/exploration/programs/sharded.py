"""A toy that saves with torch.distributed.checkpoint or safetensors, as its argument says."""

import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

HOW = sys.argv[1]
OUT = Path("out")


def flat(net, opt):
    state = {f"net.{k}": v for k, v in net.state_dict().items()}
    for index, slots in opt.state_dict()["state"].items():
        state.update({f"opt.{index}.{k}": v for k, v in slots.items()})
    return state


def put_back(net, opt, state):
    net.load_state_dict({k[4:]: v for k, v in state.items() if k.startswith("net.")})
    whole = opt.state_dict()
    for key, value in state.items():
        if key.startswith("opt."):
            _, index, name = key.split(".")
            whole["state"].setdefault(int(index), {})[name] = value
    opt.load_state_dict(whole)


def save(state, step):
    if HOW == "safetensors":
        from safetensors.torch import save_file

        save_file({**state, "step": torch.tensor(step)}, OUT / "model.safetensors")
        return
    folder = OUT / "saved" if HOW == "one_folder" else OUT / f"step_{step:03d}"
    # A file for each tensor, so that a kill between two of them leaves both steps.
    writer = dcp.FileSystemWriter(folder, single_file_per_rank=HOW != "one_folder")
    dcp.save({**state, "step": torch.tensor(step)}, storage_writer=writer)


def load(state):
    """Return the state of the newest checkpoint and its step, or None."""
    if HOW == "safetensors":
        from safetensors.torch import load_file

        path = OUT / "model.safetensors"
        found = load_file(path) if path.exists() else None
    else:
        whole = [path.parent for path in OUT.glob("*/.metadata")]
        found = None
        if whole:
            found = {**state, "step": torch.tensor(0)}
            dcp.load(found, checkpoint_id=max(whole))
    return found


OUT.mkdir(exist_ok=True)
torch.manual_seed(0)
net = torch.nn.Linear(8, 2)
opt = torch.optim.SGD(net.parameters(), 1e-1, momentum=0.9)
x, y = torch.randn(48, 8), torch.randint(0, 2, (48,))
for parameter in net.parameters():  # the optimizer's slots are there to be loaded into
    opt.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
start, found = 0, load(flat(net, opt))
if found is not None:
    start = int(found.pop("step"))
    put_back(net, opt, found)
for step in range(start, 12):
    rows = torch.arange(4 * step, 4 * step + 4)
    loss = torch.nn.functional.cross_entropy(net(x[rows]), y[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if (step + 1) % 3 == 0:
        save(flat(net, opt), step + 1)
