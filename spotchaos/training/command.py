"""The reference trainer as a command: options, ranks, exit status."""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import statistics
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spotchaos.errors import SpotchaosError, UsageError
from spotchaos.stores import open_store
from spotchaos.training.ranks import die_with_parent, start_ranks

if TYPE_CHECKING:
    from spotchaos.training.keeper import Keeper
    from spotchaos.training.peers import Peers
    from spotchaos.training.sharded import ShardedStore
    from spotchaos.training.transformer import CharTransformer

SIZE = 32  # of the model by default
STOPPED = 143  # as a shell writes SIGTERM: not finished, start me again


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; with several ranks and no launcher, be the launcher."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(arguments)
    if "WORLD_SIZE" not in os.environ and options.ranks > 1:
        command = [sys.executable, "-m", "spotchaos.training", *arguments]
        return start_ranks(command, world_size=options.ranks)
    die_with_parent()
    try:
        return _train(options)
    except SpotchaosError as error:
        sys.stderr.write(f"error: {error}\n")
        return _leave(1)
    except Exception:
        traceback.print_exc()
        return _leave(1)


def _leave(status: int) -> int:
    """End now if there are peers: waiting for them in an exit hook could hang."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _train(options: argparse.Namespace) -> int:
    import torch
    from torch.nn import functional

    from spotchaos.training.peers import device_of_rank, join
    from spotchaos.training.pollers import POLLERS, AzurePoller, detect
    from spotchaos.training.text import VOCABULARY, Windows
    from spotchaos.training.trainer import Schedule, Trainer, be_deterministic
    from spotchaos.training.transformer import CharTransformer
    from spotchaos.training.watch import InterruptionWatch

    def loss_of(model: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        codes, following = batch
        return functional.cross_entropy(model(codes).flatten(0, 1), following.flatten())

    pollers = detect() if options.watch == "auto" else []
    if options.watch in POLLERS:
        pollers = [POLLERS[options.watch]()]
    for poller in pollers:
        if isinstance(poller, AzurePoller):
            poller.acknowledge = options.acknowledge
    torch.set_num_threads(options.threads)
    be_deterministic()
    with InterruptionWatch(pollers=pollers) as watch:
        device = torch.device("cpu")
        if options.device != "cpu":
            device = device_of_rank()
        if device.type == "cuda":
            torch.cuda.set_device(device)
        peers = join(timeout_s=options.peer_timeout, device=device)
        logging.basicConfig(
            level=logging.INFO if peers.leads else logging.WARNING,
            format="%(message)s", stream=sys.stdout,
        )  # fmt: skip
        schedule = Schedule(
            steps=options.steps, save_every=options.save_every, batch=options.batch,
            accumulate=options.accumulate, seed=options.seed,
            loader_workers=options.workers, precision=options.precision,
            average=options.average, evaluate_every=options.evaluate_every,
        )  # fmt: skip
        torch.manual_seed(options.seed)
        model = CharTransformer(
            vocabulary=VOCABULARY, size=options.size, dropout=options.dropout
        )
        model = model.to(device)
        if options.sharded:
            _shard(model, peers)
        trainer = Trainer(
            model=model,
            data=Windows(samples=options.samples),
            held_out=Windows(samples=16, skip=options.samples),
            loss_of=loss_of,
            keeper=_keeper(options, peers),
            peers=peers,
            schedule=schedule,
            watch=watch,
            virtual_workers=options.virtual_workers,
            allow_inexact=options.allow_inexact,
        )
        finished = trainer.run()
        trainer.close()
        if options.timing and trainer.steps_s:
            middle = statistics.median(trainer.steps_s)
            logging.getLogger(__name__).info("%.3f ms a step (median)", 1000 * middle)
    return 0 if finished else options.exit_code


def _shard(model: CharTransformer, peers: Peers) -> None:
    from torch.distributed.fsdp import fully_shard

    if peers.world_size == 1:
        raise UsageError(
            "one rank has nobody to share a model with", hint="start two or more"
        )
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)


def _keeper(options: argparse.Namespace, peers: Peers) -> Keeper | ShardedStore:
    from spotchaos.training.checkpoint import CheckpointStore
    from spotchaos.training.keeper import Keeper
    from spotchaos.training.sharded import ShardedStore
    from spotchaos.training.sync import Mirror

    run_id = options.run_id or _run_id(options)
    local = CheckpointStore(options.out, run_id=run_id, keep=options.keep)
    mirror = None
    if options.store is not None:
        mirror = Mirror(local, open_store(options.store))
    if options.sharded:
        return ShardedStore(local, peers, mirror=mirror)
    return Keeper(local, mirror=mirror, in_background=options.background)


def _run_id(options: argparse.Namespace) -> str:
    """Name the run by what decides its result: the same on every machine."""
    decides = (
        "seed", "steps", "batch", "accumulate", "samples", "dropout", "precision",
        "average", "virtual_workers",
    )  # fmt: skip
    values = {name: getattr(options, name) for name in decides}
    if options.size != SIZE:
        values["size"] = options.size
    if options.sharded:  # it adds in another order
        values["sharded"] = True
    text = json.dumps(values)
    return f"reference-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spotchaos.training",
        description="Train a small character-level transformer on the sources of the "
        "standard library. Killed at any moment and started again with the same command, "
        "it ends with the same weights, bit for bit.",
        epilog="Exit status: 0 finished, --exit-code stopped by a signal with its state "
        "saved, 1 error. Under torchrun --ranks is torchrun's.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("checkpoints"), metavar="DIR",
        help="folder of the checkpoints")  # fmt: skip
    add("--ranks", type=int, default=2, metavar="N", help="ranks to start here")
    add("--steps", type=int, default=50, metavar="N", help="optimizer steps in all")
    add("--save-every", type=int, default=5, metavar="N", help="steps between saves")
    add("--keep", type=int, default=2, metavar="N", help="whole checkpoints that stay")
    add("--batch", type=int, default=4, metavar="N", help="samples of a micro-batch")
    add(
        "--accumulate", type=int, default=2, metavar="N", help="micro-batches of a step"
    )
    add("--samples", type=int, default=320, metavar="N", help="samples of an epoch")
    add("--size", type=int, default=SIZE, metavar="N", help="width of the model; 256 makes "
        "checkpoints of 19 MB, which stores take in parts")  # fmt: skip
    add(
        "--dropout",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="activations dropped",
    )
    add(
        "--seed", type=int, default=0, metavar="N", help="makes weights, order, dropout"
    )
    add(
        "--workers", type=int, default=0, metavar="N", help="loader processes of a rank"
    )
    add("--threads", type=int, default=1, metavar="N", help="threads of a rank")
    add("--store", metavar="URL", help="where checkpoints are copied to and fetched from: "
        "s3://bucket/prefix, gs://bucket/prefix or a folder")  # fmt: skip
    add("--background", action="store_true", help="write while training goes on")
    add("--virtual-workers", type=int, metavar="N", help="workers that any number of "
        "ranks up to N imitates, with the same bits")  # fmt: skip
    add("--sharded", action="store_true", help="share the model out over the ranks "
        "(FSDP2), each of which saves its part")  # fmt: skip
    add("--allow-inexact", action="store_true", help="go on from a checkpoint of another "
        "number of ranks, though its bits are lost")  # fmt: skip
    add("--precision", choices=["fp32", "bf16", "fp16"], default="fp32",
        help="of the forward pass; fp16 scales the loss")  # fmt: skip
    add("--average", type=float, default=0.0, metavar="DECAY",
        help="keep an averaged copy of the model; 0 keeps none")  # fmt: skip
    add("--evaluate-every", type=int, default=0, metavar="N",
        help="steps between evaluations; 0 never evaluates")  # fmt: skip
    add("--watch", choices=["auto", "none", "aws", "gcp", "azure", "alibaba"],
        default="auto", help="whose notice of an interruption to watch for, beside signals")  # fmt: skip
    add("--acknowledge", action="store_true", help="tell Azure to go ahead once the "
        "state is saved, instead of waiting for its deadline")  # fmt: skip
    add(
        "--timing",
        action="store_true",
        help="print the median time of a step at the end",
    )
    add(
        "--device",
        choices=["auto", "cpu"],
        default="auto",
        help="where to compute; auto takes the GPUs where each rank has its own",
    )
    add("--run-id", metavar="NAME", help="names the run; by default made of the options "
        "that decide its result")  # fmt: skip
    add("--peer-timeout", type=float, default=30.0, metavar="SECONDS",
        help="a rank that does not answer for so long is given up")  # fmt: skip
    add("--exit-code", type=int, default=STOPPED, metavar="CODE",
        help="status after a signal, once the state is saved")  # fmt: skip
    return parser
