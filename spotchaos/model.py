"""The nouns: frozen records of what was planned, what happened and what it means.

They are plain data. Whatever reads a trace folder is in `spotchaos.trace`; whatever
decides is in `spotchaos.oracles`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# No process that is ever run is kept waiting for longer than this leaves.
LEAST_SHARE = 0.01


class Verdict(StrEnum):
    """What is said of a trial or a campaign; the worst wins."""

    HELD = "held"
    UNKNOWN = "unknown"
    VIOLATED = "violated"

    @property
    def severity(self) -> int:
        return list(Verdict).index(self)


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return violated, then unknown, then held; nothing at all proves nothing."""
    return max(verdicts, key=lambda v: v.severity, default=Verdict.UNKNOWN)


class Ended(StrEnum):
    """How an attempt came to its end."""

    FINISHED = "finished"  # left alone, trained to the end, status 0
    EXITED = "exited"  # ended by itself before the end, or with another status
    FAILED = "failed"  # ended with an error of its own
    RECLAIMED = "reclaimed"  # killed by us
    HUNG = "hung"  # made no progress until the time limit of its phase


@dataclass(frozen=True, slots=True)
class StateMark:
    """The state of one step of one rank: a fingerprint for each component."""

    step: int  # counted within the attempt; 0 is what it started with
    at: str  # "step", "save" or "finish"
    components: Mapping[str, str]
    rng: Mapping[str, tuple[str, str | None, int]] = field(default_factory=dict)
    epoch: int | None = None
    t_s: float = 0.0  # when it was taken; it is written when a step consumes it
    dtypes: Mapping[str, str] = field(default_factory=dict)  # component -> its dtypes
    # Optimizers that may have stepped their last -> the components without them.
    less: Mapping[frozenset[int], Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepMark:
    """One completed optimizer step of one rank: what it consumed and made."""

    step: int  # counted within the attempt, from 1
    components: Mapping[str, str]
    loss: float | None = None
    samples: tuple[str, ...] | None = None
    ids: str = "rows"  # "index" (of the data set) or "rows" (digests of their content)
    rows: tuple[str, ...] | None = None  # the digests, where the samples have an index
    micro: int = 1
    epoch: int | None = None
    t_s: float = 0.0
    # Optimizer -> the turns, counted over all, at which it stepped first and last.
    by: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    # Modules that were called and that nothing trains: kind -> fingerprints of weights.
    frozen: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SaveMark:
    """All checkpoint writes of one rank between two steps."""

    number: int  # counted within the attempt, from 1
    step: int  # steps completed in this attempt when it began
    paths: tuple[str, ...]  # final names, relative to the working folder
    state: StateMark | None  # at save-begin
    begun_at_s: float
    ended_at_s: float | None  # None: the attempt ended first
    is_beside: bool = False  # another thread than the one that trains wrote it
    # The step, in this attempt, of the weights in it; None: nobody has looked, or known.
    holds: int | None = None
    is_of_unknown_step: bool = False  # training may have moved on since it was copied
    took_s: float | None = None  # without what the probe did in that time

    @property
    def of_step(self) -> int:
        """The step, in this attempt, whose state it holds; the last it can be, if unknown."""
        return self.step if self.holds is None else self.holds


@dataclass(frozen=True, slots=True)
class LoadMark:
    """One thing that the program loaded or opened for reading."""

    path: str
    via: str
    step: int
    t_s: float


@dataclass(frozen=True, slots=True)
class ProgramException:
    """The exception with which a process of the program ended."""

    type: str
    message: str
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class RankTrace:
    """What one rank left behind in one attempt."""

    rank: int
    states: Mapping[int, StateMark]  # by step within the attempt, at "step"
    finish: StateMark | None
    steps: tuple[StepMark, ...]
    saves: tuple[SaveMark, ...]
    loads: tuple[LoadMark, ...]
    counts: Mapping[str, int]  # site -> how often it was reached
    sites: tuple[tuple[str, int, int, float], ...] = ()  # rare: site, n, step, t
    optimizers: tuple[Mapping[str, Any], ...] = ()
    counted: Mapping[str, int] = field(default_factory=dict)
    # Optimizer (by order of creation) -> how often it was the last to step before a save
    # or the end, and the one whose steps were counted.
    closings: Mapping[int, int] = field(default_factory=dict)
    main_optimizer: int | None = None
    exception: ProgramException | None = None
    said_bye: bool = False
    dumps: tuple[Mapping[str, Any], ...] = ()
    # Step -> tensor -> its digest; only if asked for.
    tensors: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    notes: tuple[tuple[str, str], ...] = ()
    pid: int = 0
    torch: str | None = None
    python: str | None = None
    algorithm: str | None = None
    epochs: Mapping[int, int] = field(default_factory=dict)  # last step -> epoch ended
    modules: tuple[tuple[str, str], ...] = ()  # name, file; only if asked for

    @property
    def completed(self) -> int:
        """Steps completed within the attempt."""
        return self.steps[-1].step if self.steps else self.counts.get("step-end", 0)


@dataclass(frozen=True, slots=True)
class AttemptTrace:
    """What all processes of one attempt left behind."""

    ranks: Mapping[int, RankTrace]
    world_size: int
    processes: int  # that loaded the probe, helpers included
    torch_seen: bool
    # The commands of processes that each trained as one rank, one after the other.
    in_turn: tuple[str, ...] = ()

    @property
    def observed(self) -> bool:
        """Whether any training step, or at least its beginning, was seen."""
        return any(r.steps or r.states for r in self.ranks.values())

    @property
    def completed(self) -> int:
        """Steps that every rank completed."""
        return min((r.completed for r in self.ranks.values()), default=0)


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault without a kill that was asked for in an attempt, and what came of it."""

    fault: str  # as it was asked for: "enospc:3"
    kind: str  # "error", "delay", "damage" (of a finished file) or "store"
    times: int  # how often it struck; 0: it was never reached
    at_s: float | None = None  # the first time, CLOCK_MONOTONIC
    path: str | None = None  # what it struck first, relative to the working folder


@dataclass(frozen=True, slots=True)
class Request:
    """One operation of the program on its object store."""

    at_s: float  # CLOCK_MONOTONIC
    operation: str  # in the store's own words
    kind: str  # "read", "write", "commit", "object" or "list"
    path: str  # bucket/key
    status: int  # 0: no answer was sent
    part: str = ""  # of an upload in parts: its number
    fault: str = ""  # empty: none struck it

    @property
    def is_accepted(self) -> bool:
        """Whether the store did what it was asked, whatever the program was told."""
        if self.fault.endswith("-lost-complete"):
            return True
        if self.status == 308:  # of Google Cloud: the part is in, more may come
            return bool(self.part)
        return 200 <= self.status < 300 and not self.fault.endswith("-error-body")

    @property
    def made_object(self) -> bool:
        """Whether it put a whole object into the store: a part of one is none yet."""
        return self.kind in ("write", "commit") and self.is_accepted and not self.part


@dataclass(frozen=True, slots=True)
class Stored:
    """What lay in the object store at the end of an attempt, and what the attempt did."""

    objects: Mapping[str, int]  # bucket/key -> bytes
    texts: Mapping[str, str]  # what the small ones among them say
    requests: tuple[Request, ...]  # of this attempt, about objects, oldest first
    abandoned: tuple[str, ...] = ()  # uploads begun, neither completed nor aborted


@dataclass(frozen=True, slots=True)
class Left:
    """What lay on the machine when an attempt was over, its checkpoints apart.

    Each is a name and a size in bytes.
    """

    files: tuple[tuple[str, int], ...] = ()  # in the folder, named as temporary or lock
    temporary: tuple[tuple[str, int], ...] = ()  # in TMPDIR
    memory: tuple[tuple[str, int], ...] = ()  # shared memory
    # Not a size but a number: at which port a process that lived on still listened.
    ports: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """One way in which outputs are not those of the uninterrupted run, with an example."""

    kind: (
        str  # "missing", "repeated", "differ", "torn", "foreign", "leftover", "besides"
    )
    count: int  # records, or files where nobody can tell their records
    path: str  # of the example: relative to the working folder
    record: str | None = None  # its key, or where it stands; None: the whole file
    field: str | None = None
    wanted: str | None = None
    got: str | None = None
    detail: str = ""  # what is amiss, in words
    group: str = ""  # of files, to which the path belongs


@dataclass(frozen=True, slots=True)
class OutputsSeen:
    """What an attempt left behind, where that is judged.

    Attributes:
        files: path -> bytes of each output file, and when it was changed, CLOCK_MONOTONIC
            in nanoseconds.
        differences: from the uninterrupted run; None: nobody compared it.
        written: how many records it wrote, told by its file ops; None: nobody counted.
    """

    files: Mapping[str, tuple[int, int]]
    differences: tuple[OutputDifference, ...] | None = None
    written: int | None = None


@dataclass(frozen=True, slots=True)
class OutputsFound:
    """What uninterrupted runs leave alike.

    Attributes:
        sizes: path -> bytes of each output file.
        records: in all of them.
        written: how many records were written, told by file ops; None: nobody counted.
        ahead: group of files -> the file that tells of its records before they are there.
        is_alone: nothing was trained: outputs are all there is to judge.
        objects: bucket/key -> bytes, in an object store.
        texts: what the small ones among them say.
    """

    sizes: Mapping[str, int]
    records: int
    written: int | None
    ahead: Mapping[str, str]
    is_alone: bool
    objects: Mapping[str, int] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def counted(self) -> str:
        """Their number in words: "3 output files, 1,200 records"."""
        files, records, objects = len(self.sizes), self.records, len(self.objects)
        said = (
            f"{files} output file{'' if files == 1 else 's'},"
            f" {records:,} record{'' if records == 1 else 's'}"
        )
        if not objects:
            return said
        stored = f"{objects:,} object{'' if objects == 1 else 's'} in the store"
        return f"{said}, {stored}" if files else stored


@dataclass(frozen=True, slots=True)
class NoticePlayed:
    """A provider's notice to one attempt, in the provider's seconds and in ours."""

    story: str
    provider: str
    grace_s: float  # cloud seconds from the announcement to the deadline
    time_scale: float  # cloud seconds per real second
    deadline_at_s: float  # CLOCK_MONOTONIC
    reclaimed: bool  # whether a reclaim follows
    asked: int = 0  # requests of the program, in all
    asked_after: int = 0  # ... answered once the notice could be read
    refused: int = 0  # ... of these: answered with an error, or not at all
    refusal: str = ""  # ... in words, the last of them
    is_served: bool = False  # over HTTP: whoever heard of it has asked
    proxy: str = ""  # the user's variable whose proxy was passed by
    is_hasty: bool = False  # over before who asks now and then could have asked
    is_cut_short: bool = False  # the reclaim came before the deadline, as it was to
    paused: bool = False  # the machine stood still, as it was to


@dataclass(frozen=True, slots=True)
class Restart:
    """What ran between two starts of the ranks within one attempt."""

    trace: AttemptTrace
    began_at_s: float  # CLOCK_MONOTONIC; 0: with the attempt


@dataclass(frozen=True, slots=True)
class Sent:
    """A signal that the harness sent before the grace window ended."""

    signal: str  # without SIG; KILL to "all" is a reclaim before its time
    target: str  # as in `--to`
    at_s: float  # CLOCK_MONOTONIC
    step: int  # completed by every rank


@dataclass(frozen=True, slots=True)
class Attempt:
    """One launch of the program, to its exit or its reclaim."""

    number: int
    command: tuple[str, ...]
    ended: Ended
    exit_code: int | None
    trace: AttemptTrace
    wall_s: float
    cpu_s: float = 0.0
    delayed_s: float = (
        0.0  # others kept it from running for so long, as far as was seen
    )
    kill_point: str | None = None  # where it was interrupted, as it landed
    reached: bool = True  # False: the planned kill point was never reached
    signal: str | None = None
    signalled_step: int | None = None
    target: str = "all"  # who got the signal, as in `--to`; "ours": our own launcher
    notified_rank: bool = True  # False: no rank was among those who got the signal
    is_deaf: bool = False  # every rank that got it ignores it (SIG_IGN)
    sent: tuple[Sent, ...] = ()
    unsent: tuple[str, ...] = ()  # what was to follow the first signal, and did not
    started_at_s: float = 0.0  # CLOCK_MONOTONIC
    over_at_s: float | None = None  # ... when the first process had ended by itself
    notice_at_s: float | None = None
    reclaimed_at_s: float | None = None
    output_tail: str = ""
    stacks: str = ""  # Python stacks of who hung
    survivors: tuple[str, ...] = ()  # processes that outlived the leader
    trouble: str | None = None  # ours: what the harness could not do
    refused_write: str | None = None  # a path that isolation refused to the program
    path: str = "cold"  # "warm": forked from a zygote
    notice: NoticePlayed | None = None
    injected: tuple[Injected, ...] = ()
    stored: Stored | None = None  # None: there is no object store
    left: Left | None = None  # None: nobody looked
    restarts: tuple[Restart, ...] = ()  # starts within it, until they are told apart
    is_restart: bool = False  # begun by a launcher that outlived the attempt before
    stuck: bool = False  # once a rank was gone, no other one made a step until the end
    outputs: OutputsSeen | None = None  # None: they are not judged

    @property
    def undelayed_share(self) -> float:
        """The share of its time in which others did not keep it from running; above 0."""
        if not self.wall_s:
            return 1.0
        return max(LEAST_SHARE, 1.0 - self.delayed_s / self.wall_s)


@dataclass(frozen=True, slots=True)
class Trial:
    """One plan carried out: attempts, until the program finishes or gives up."""

    number: int
    plan: str
    attempts: tuple[Attempt, ...]
    wall_s: float = 0.0
    path: str = "cold"  # "warm" through the zygote
    dropped: tuple[str, ...] = ()  # drawn kill points that were not reached
    replay: str = ""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step and components at which an attempt leaves its baseline."""

    step: int
    rank: int
    components: tuple[str, ...]
    tensor: str | None = None
    elements: int | None = None
    max_ulp: int | None = None
    # How far the weights lie apart from there on: step, elements that differ, ULP.
    curve: tuple[tuple[int, int, int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """An oracle's statement that a property was violated."""

    name: str
    message: str
    hint: str | None = None
    attempt: int | None = None
    step: int | None = None
    rank: int | None = None
    component: str | None = None
    where: Mapping[str, Any] | None = None  # {"file": ..., "line": ...}


@dataclass(frozen=True, slots=True)
class Note:
    """Something that was seen and breaks no promise."""

    name: str
    message: str
    attempt: int | None = None


Restored = Mapping[
    int, Mapping[str, int | str]
]  # rank -> component -> step|"fresh"|...


@dataclass(frozen=True, slots=True)
class Resume:
    """How one attempt after the first began: where it joined the baseline, and with what."""

    attempt: int
    joined: int | None  # the baseline step; None: nothing of it was recognised
    restored: Restored
    newest_resume_point: int | None
    lost_steps: int
    divergence: Divergence | None = None
    # rank -> RNG stream -> draws by which it was moved after it had been restored
    disturbed: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    discarded_steps: int = 0  # steps that it made and threw away before it joined


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the oracles say of one trial."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]
    resumes: tuple[Resume, ...]
    holds_up_to: str | None  # the strongest promise that holds
    ledger: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Baseline:
    """The uninterrupted runs, and what can be compared with them.

    `compared` names, for each rank, the components on which both runs agree. `patterns`
    are the paths that the control's resume read, digits replaced by `#`: a save that
    wrote one of them is a resume point (rules.md 3).
    """

    runs: tuple[Attempt, ...]
    light: Attempt | None
    control: Trial | None
    repeatable: bool
    differs_at: str | None
    not_compared: tuple[str, ...]
    patterns: tuple[str, ...]
    observer_effect: bool = False
    # Rank -> step -> tensor -> its digest; only once a resume cannot be told without.
    tensors: Mapping[int, Mapping[int, Mapping[str, str]]] = field(default_factory=dict)
    outputs: OutputsFound | None = None  # None: they are not judged

    @property
    def first(self) -> Attempt:
        return self.runs[0]

    @property
    def horizon(self) -> int:
        """Steps of the uninterrupted run."""
        return self.first.trace.completed

    @property
    def world_size(self) -> int:
        return self.first.trace.world_size
