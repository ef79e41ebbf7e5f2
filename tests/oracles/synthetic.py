"""A training program that exists only as fingerprints, and the records it would leave.

It steps, shuffles, draws, saves and resumes as a plain PyTorch loop does, but every tensor
is a digest, so that a flaw in its resume has exactly the consequences that it has in life:
a lost optimizer changes the next weights, a lost stream the next order.

    program = Program(horizon=24, epoch_steps=8, save_every=4)
    baseline = program.baseline()
    trial = program.trial([13], flaw=Flaw(lost={"rng.torch"}))
    judge(trial, baseline)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flaws import PERFECT, STREAMS, Flaw, State, Stream, digest, shuffled

from spotchaos.model import (
    Attempt,
    AttemptTrace,
    Ended,
    LoadMark,
    RankTrace,
    SaveMark,
    StateMark,
    StepMark,
    Trial,
)
from spotchaos.oracles import judge_baselines


@dataclass(frozen=True)
class Program:
    """How the program is made; the defaults are a plain loop with everything in it."""

    horizon: int = 24
    epoch_steps: int = 8
    save_every: int = 4
    ranks: int = 1
    batch: int = 2
    order: str = "rng.torch"  # from which stream, or "epoch" (seed and epoch), "fixed"
    dropout_words: int = 700  # drawn from torch's stream in each forward; 0: no dropout
    augment_from: str | None = (
        None  # a stream that the content of batches is drawn from
    )
    augment_words: int = 2
    momentum: bool = True  # else the optimizer has no state
    has_buffers: bool = False
    has_scaler: bool = False
    has_averages: bool = False
    warmup: int = 0  # steps of rate 0 at the start
    plateau: tuple = ()  # steps (as in `range`) of rate 0
    constant_rate: bool = False
    has_scheduler: bool = True
    ids: str | None = "index"
    idle_streams: tuple = ("rng.python", "rng.numpy")  # seeded and never drawn from
    iterator_words: int = 2  # drawn from torch's stream when an iterator is made
    seed: int = 0

    # -- the program ---------------------------------------------------------------

    def fresh(self):
        names = [*STREAMS]
        return State(
            step=0,
            weights=digest("init", self.seed),
            buffers=[digest("buffers")] * self.ranks,
            optimizer=digest("moments", 0),
            scheduler=0,
            scaler=digest("scale", 0),
            averages=digest("init", self.seed, "average"),
            streams=[
                {
                    n: Stream((self.seed, n, 0 if n == "rng.generators" else rank))
                    for n in names
                }
                for rank in range(self.ranks)
            ],
        )

    def rate(self, position):
        if position < self.warmup or position in self.plateau:
            return 0.0
        return 0.1 if self.constant_rate else 0.1 / (1 + position)

    def components(self, state, rank):
        found = {"weights": state.weights, "rates": digest(self.rate(state.scheduler))}
        found["optimizer"] = state.optimizer
        if self.has_scheduler:
            found["scheduler"] = digest("scheduler", state.scheduler)
        if self.has_buffers:
            found["buffers"] = state.buffers[rank]
        if self.has_scaler:
            found["scaler"] = state.scaler
        if self.has_averages:
            found["averages"] = state.averages
        return found

    def mark(self, state, rank, local, at, t_s, dtypes=None):
        rng = {n: s.mark() for n, s in state.streams[rank].items()}
        found = self.components(state, rank)
        found |= {name: f"{block}.{used}" for name, (block, _, used) in rng.items()}
        return StateMark(
            step=local,
            at=at,
            components=found,
            rng=rng,
            epoch=state.epoch,
            t_s=t_s,
            dtypes=dict(dtypes or {"weights": "float32", "optimizer": "float32"}),
        )

    def begin_epoch(self, state):
        for rank in range(self.ranks):
            streams = state.streams[rank]
            streams["rng.torch"].draw(self.iterator_words)
            if self.order in STREAMS:
                # As a distributed sampler does: all ranks shuffle alike.
                seed = streams[self.order].draw(2)
                if rank == 0:
                    state.order_seed = seed
        if self.order == "epoch":
            state.order_seed = (self.seed, state.epoch)
        elif self.order == "fixed":
            state.order_seed = "fixed"

    def samples(self, state, rank):
        ids = shuffled(
            self.epoch_steps * self.batch * self.ranks, repr(state.order_seed)
        )
        start = (state.position * self.ranks + rank) * self.batch
        return ids[start : start + self.batch]

    # -- one attempt -----------------------------------------------------------------

    def attempt(
        self,
        *,
        number=1,
        checkpoint=None,
        flaw=PERFECT,
        stop=None,
        earlier=(),
        ended=None,
        kill_in_save=False,
        begin_only=False,
        **record,
    ):
        """Run once; return the record and the checkpoints that it wrote.

        checkpoint: the State to resume from; None starts afresh.
        stop: reclaimed after this many steps of its own; None trains to the end.
        """
        run = _Run(self, number, flaw)
        state = self._started(run, checkpoint, flaw, earlier)
        total = self.horizon + flaw.extra_steps
        base = state.step
        while state.step < total and (stop is None or state.step - base < stop):
            self._step(run, state, state.step - base, flaw)
        local = state.step - base
        reclaimed = stop is not None
        if reclaimed and begin_only and state.step < total:
            self._begin(run, state, local)
        if kill_in_save and run.saves[0]:
            run.tear_last_save(checkpoints=run.checkpoints)
        if not reclaimed:
            run.finish = [
                self.mark(state, r, local, "finish", run.now())
                for r in range(self.ranks)
            ]
        defaults = {
            "ended": ended or (Ended.RECLAIMED if reclaimed else Ended.FINISHED),
            "exit_code": None if reclaimed else 0,
            "wall_s": 1.0,
            "command": ("python", "train.py"),
        }
        attempt = Attempt(
            number=number,
            trace=run.trace(loaded=None if flaw.ahead else checkpoint),
            **{**defaults, **record},
        )
        return attempt, run.checkpoints

    def _started(self, run, checkpoint, flaw, earlier):
        if checkpoint is None:
            return self.fresh()
        fresh, state = self.fresh(), checkpoint.copy()
        for name in ("weights", "optimizer", "scheduler", "scaler", "averages"):
            if name in flaw.lost:
                setattr(state, name, getattr(fresh, name))
            if name in flaw.foreign:
                setattr(state, name, digest("foreign", name))
            if name in flaw.stale:
                setattr(state, name, getattr(earlier[-1 - flaw.stale[name]], name))
        state.scheduler += flaw.scheduler_ahead
        for rank in range(self.ranks):
            if "buffers" in flaw.lost and flaw.injects(rank):
                state.buffers[rank] = fresh.buffers[rank]
        kept = [{n: s.copy() for n, s in each.items()} for each in state.streams]
        ends_epoch = state.position == self.epoch_steps
        if not ends_epoch:
            # A new iterator is made, its batches skipped; then the streams are put back.
            for rank in range(self.ranks):
                for name, stream in fresh.streams[rank].items():
                    state.streams[rank][name] = stream.copy()
            seed = state.order_seed
            self.begin_epoch(state)
            after_start = [
                {n: s.copy() for n, s in each.items()} for each in state.streams
            ]
            if "order" not in flaw.lost:
                state.order_seed = seed
            if "position" in flaw.lost:
                state.position = 0
        else:
            after_start = [
                {n: s.copy() for n, s in each.items()} for each in fresh.streams
            ]
        for rank in range(self.ranks):
            for name in STREAMS:
                lost = name in flaw.lost and flaw.injects(rank)
                state.streams[rank][name] = (after_start if lost else kept)[rank][name]
                if name in flaw.disturbed and flaw.injects(rank):
                    state.streams[rank][name].draw(flaw.disturbed[name])
                if name in flaw.foreign and flaw.injects(rank):
                    state.streams[rank][name] = Stream(("foreign", name, rank))
        state.position += flaw.skip_batches
        if flaw.next_epoch:
            state.position = self.epoch_steps
        run.left_from = state.position if flaw.renumbers else None
        if "epoch" in flaw.lost:
            state.epoch = 0
        run.dtypes = {"weights": "float32", "optimizer": "float32", **flaw.dtypes}
        run.override = {
            rank: earlier[-1 - back] for rank, back in flaw.rank_older.items()
        }
        return state

    def _begin(self, run, state, local):
        """Come as far as the forward of the next step: fetch a batch, sample the state."""
        if state.position >= self.epoch_steps or state.order_seed is None:
            if state.position >= self.epoch_steps:
                state.epoch, state.position = state.epoch + 1, 0
                run.left_from = None
            self.begin_epoch(state)
        batches = []
        for rank in range(self.ranks):
            ids = self.samples(state, rank)
            extra = ""
            if self.augment_from is not None:
                extra = state.streams[rank][self.augment_from].draw(self.augment_words)
            batches.append((ids, digest("content", ids, extra), extra))
        for rank in range(self.ranks):
            mark = self.mark(state, rank, local, "step", run.now(), run.dtypes)
            if local == 0 and rank in run.override:
                other = self.components(run.override[rank], rank)
                mark = replace(mark, components={**mark.components, **other})
            run.states[rank][local] = mark
        return batches

    def _step(self, run, state, local, flaw):
        batches = self._begin(run, state, local)
        losses = []
        for rank in range(self.ranks):
            noise = ""
            if self.dropout_words:
                noise = state.streams[rank]["rng.torch"].draw(self.dropout_words)
            inputs = (state.weights, batches[rank][1], noise)
            if self.has_buffers:
                inputs = (*inputs, state.buffers[rank])
            losses.append(digest("loss", *inputs))
        first = local == 0 and run.number > 1
        gradients = digest("gradients", losses, first and flaw.reorders_sum)
        rate = self.rate(state.scheduler)
        if self.momentum:
            state.optimizer = digest("moments", state.optimizer, gradients)
        if rate:
            update = state.optimizer if self.momentum else gradients
            hidden = first and flaw.hidden
            state.weights = digest("weights", state.weights, update, rate, hidden)
        for rank in range(self.ranks):
            state.buffers[rank] = digest(
                "buffers", state.buffers[rank], batches[rank][1]
            )
        state.averages = digest("average", state.averages, state.weights)
        state.scaler = digest("scale", state.step // 3)
        state.scheduler += 1
        state.step += 1
        state.position += 1
        for rank in range(self.ranks):
            ids, content, extra = batches[rank]
            found = {"batch": content, "loss": losses[rank], "gradients": gradients}
            rows = tuple(digest("row", i, extra) for i in ids)
            named = ids if self.ids == "index" else rows
            if run.left_from is not None and self.ids == "index":
                # A loader over what is left of the epoch: other data, its own numbers.
                start = (state.position - 1 - run.left_from) * self.ranks + rank
                named = tuple(str(start * self.batch + i) for i in range(len(ids)))
            if self.ids is not None:
                found["samples"] = digest("samples", named)
            run.steps[rank].append(
                StepMark(
                    step=local + 1,
                    components=found,
                    loss=0.5,
                    samples=None if self.ids is None else named,
                    ids=self.ids or "rows",
                    rows=rows if self.ids == "index" else None,
                    epoch=state.epoch,
                    t_s=run.now(),
                )
            )
        if state.step % self.save_every == 0 and state.step < self.horizon + 1:
            self._save(run, state, local + 1)

    def _save(self, run, state, local):
        begun = run.now()
        run.checkpoints.append(state.copy())
        run.saves[0].append(
            SaveMark(
                number=len(run.saves[0]) + 1,
                step=local,
                paths=(f"ckpt-{state.step}.pt",),
                state=self.mark(state, 0, local, "save", begun),
                begun_at_s=begun,
                ended_at_s=run.now(),
            )
        )

    # -- records ---------------------------------------------------------------------

    def baseline(self, **changes):
        run = self.attempt()[0]
        facts = judge_baselines((run, run), None)
        assert facts.finding is None, facts.finding
        return replace(
            facts.baseline,
            **{"patterns": ("ckpt-#.pt",), "control": None, **changes},
        )

    def trial(
        self,
        kills: Sequence[int],
        *,
        flaw: Flaw = PERFECT,
        flaws: dict | None = None,
        in_save: Sequence[int] = (),
        begin: Sequence[int] = (),
        after_finish: bool = False,
    ) -> Trial:
        """Interrupt attempts after so many of their own steps, then let one finish.

        flaws: attempt number -> its flaw; others have `flaw`.
        in_save: numbers of the attempts whose last save is cut by the kill.
        begin: numbers of the attempts that had begun their next step when killed.
        """
        attempts, saved = [], []
        stops = [*kills, None, *([None] if after_finish else [])]
        for number, stop in enumerate(stops, start=1):
            own = (flaws or {}).get(number, flaw if number > 1 else PERFECT)
            checkpoint = None
            if number > 1 and not own.restarts and saved:
                checkpoint = saved[-1 - own.older]
                if own.ahead:
                    later = [s for s in self.attempt()[1] if s.step > checkpoint.step]
                    checkpoint = ([checkpoint, *later])[: own.ahead + 1][-1]
            attempt, written = self.attempt(
                number=number,
                checkpoint=checkpoint,
                flaw=own,
                stop=stop,
                earlier=saved,
                kill_in_save=number in in_save,
                begin_only=number in begin,
            )
            attempts.append(attempt)
            saved += written
        return Trial(
            number=1,
            plan=",".join(f"step-end:{k}" for k in kills),
            attempts=tuple(attempts),
        )


class _Run:
    """The marks of one attempt while it runs."""

    def __init__(self, program, number, flaw):
        self.program, self.number, self.flaw = program, number, flaw
        self.clock = 1000.0 * number
        ranks = range(program.ranks)
        self.states = {r: {} for r in ranks}
        self.steps = {r: [] for r in ranks}
        self.saves = {r: [] for r in ranks}
        self.checkpoints = []
        self.finish = [None for _ in ranks]
        self.dtypes = {}
        self.override = {}
        self.left_from = None  # position from which samples are counted anew

    def now(self):
        self.clock += 0.01
        return self.clock

    def tear_last_save(self, checkpoints):
        self.saves[0][-1] = replace(self.saves[0][-1], ended_at_s=None)
        checkpoints.pop()

    def trace(self, *, loaded):
        loads = ()
        if loaded is not None:
            path = f"ckpt-{loaded.step}.pt"
            loads = (LoadMark(path, "torch.load", 0, self.clock),)
        return AttemptTrace(
            ranks={
                r: RankTrace(
                    rank=r,
                    states=self.states[r],
                    finish=self.finish[r],
                    steps=tuple(self.steps[r]),
                    saves=tuple(self.saves[r]),
                    loads=loads,
                    counts={},
                )
                for r in range(self.program.ranks)
            },
            world_size=self.program.ranks,
            processes=self.program.ranks,
            torch_seen=True,
        )


def names(judgement):
    return [f.name for f in judgement.findings]


__all__ = ["PERFECT", "STREAMS", "Flaw", "Program", "digest", "names"]
