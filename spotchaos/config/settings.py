"""Everything that a campaign can be asked for: one frozen record behind every front.

The command, the plugin and scenario files fill the same fields under the same names, so
that one validation and one hint serve all of them.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import date
from pathlib import Path

from spotchaos.config.follow_ups import FollowUp, ranks_in_order
from spotchaos.config.plan import MANY, Plan
from spotchaos.errors import UsageError, closest, shortened
from spotchaos.findings import FINDINGS, PROMISES, UNKNOWN

SIGNALS = ("KILL", "TERM", "INT", "HUP", "USR1", "USR2", "STOP")
TARGET = ("all", "leader", "group", "launcher", "workers")
_RANK = re.compile("[0-9]{1,6}")
POWER_LOSS = ("ext4", "posix", "all")

DEFAULT_KILL_AT = ("random",)

# What the interface promises and this release cannot do yet: an option, `option=value`,
# or a command. Asking for one is a usage error; a line goes when its part arrives.
NOT_YET: tuple[str, ...] = ("engine",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A finding that a team has listed: it is shown, and does not count until its date."""

    finding: str
    reason: str
    until: date  # the last day on which it does not count

    def __post_init__(self) -> None:
        if self.finding in UNKNOWN:
            raise UsageError(
                f"{self.finding!r} cannot be a known finding",
                hint="with it nothing was proved, and such a run is never held",
            )
        _one_of("a known finding", self.finding, tuple(FINDINGS))
        if not self.reason.strip():
            raise UsageError(
                f"the known finding {self.finding!r} has no reason",
                hint="say why it may stay for now: reason = '...'",
            )

    def has_expired(self, today: date | None) -> bool:
        """Tell whether its date has passed; without a date of today, it never has."""
        return today is not None and today > self.until


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a campaign does to which program, and what must hold.

    Every field is an option of `spotchaos run` under the same name.
    """

    command: tuple[str, ...]
    folder: Path  # the working folder of the program
    reference_trainer: bool = False  # the command is ours: the user named no program
    resume_cmd: tuple[str, ...] | None = None
    kill_at: tuple[str, ...] = DEFAULT_KILL_AT
    trials: int = 5
    seed: int = 0
    signal: str = "KILL"
    to: str = "all"
    grace_s: float | None = None  # None: 30 for a signal, the provider's for a notice
    grace_steps: int | None = None  # `--grace 3steps`
    notice: str | None = None
    find_grace: bool = False
    then: tuple[str, ...] = ()  # what follows the first signal, see `followups`
    stagger_s: float | None = None  # between the ranks of `--to`; None: all at once
    slow_rank: tuple[int, float] | None = None  # (rank, seconds at each step and save)
    requeue: int = 4  # starts beyond the plan; enough to see three get no further
    requeue_delay_s: float | None = None  # before each start; None: hardly any
    time_scale: float | None = None
    lose: str = "process"
    move: bool = False
    durable: str | None = None
    fault: tuple[str, ...] = ()
    tmp_elsewhere: bool = False
    netns: bool = False
    allow_network: bool = False
    keep_env: tuple[str, ...] = ()  # variables that attempts have although secret
    require_isolation: bool = False
    keep_existing: bool = False
    ranks: int | None = None
    threads: int = 1
    seed_program: int | None = None
    deterministic: bool = False
    promise: str = "bitwise"
    max_lost_steps: int | None = None
    accept_refusal: bool = False
    exit_code: tuple[int, ...] | None = None
    outputs: tuple[str, ...] = ()  # globs; empty: judged where nothing is trained
    ignore_field: tuple[str, ...] = ()  # of outputs
    key: str | None = None  # the field that tells records apart; None: found out
    tolerance: tuple[float, float] = (0.0, 0.0)  # of floats: absolute, relative
    unordered: bool = False  # lines of outputs may come in any order
    max_lost_work: int | None = None  # records that are written again
    budget_s: float | None = None
    timeout_s: float = 600.0  # of each phase
    jobs: int | None = None  # None: as many as cores and memory allow
    engine: str = "local"
    shard: tuple[int, int] | None = None  # (I, N): the I-th of N parts, from 1
    no_skip: bool = False  # run again what is known to be equal
    no_cache: bool = False
    fail_on: tuple[str, ...] = ()  # empty: every finding counts
    known: tuple[Known, ...] = ()
    today: date | None = None  # when it is judged; None: no known finding expires
    fingerprint: str = "all"
    halt: str = "freeze"
    keep: Path | None = None  # traces and views are kept there
    power_loss: str | None = None  # explore: None is a process kill only
    deviations: int = 1  # explore
    saves: int | None = None  # explore: how many; None: spread over the run
    warm: bool = True  # False: every attempt is a fresh process
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _demand_a_program("no program is named", self.command)
        if self.resume_cmd is not None:
            _demand_a_program("--resume-cmd names no program", self.resume_cmd)
        for text in self.kill_at:
            if text not in MANY:
                Plan.parse(text)
        _one_of("--signal", self.signal, SIGNALS)
        ranks = self.to.removeprefix("rank:").split(",")
        if not (self.to.startswith("rank:") and all(map(_RANK.fullmatch, ranks))):
            _one_of("--to", self.to, (*TARGET, "rank:R", "rank:R,R"))
        _one_of("--promise", self.promise, PROMISES)
        _one_of("--lose", self.lose, ("process", "machine"))
        _one_of("--fingerprint", self.fingerprint, ("all", "saves"))
        _one_of("--halt", self.halt, ("freeze", "run"))
        if self.power_loss is not None:
            _one_of("--power-loss", self.power_loss, POWER_LOSS)
        for name in self.fail_on:
            _one_of("--fail-on", name, tuple(FINDINGS))
        for option, value, least, most in (
            ("--trials", self.trials, 1, 10**6),
            ("--seed", self.seed, -(2**63), 2**63 - 1),
            ("--seed-program", self.seed_program, -(2**63), 2**63 - 1),
            ("--threads", self.threads, 1, 10**4),
            ("--jobs", self.jobs, 1, 10**4),
            ("--ranks", self.ranks, 1, 10**4),
            ("--timeout", self.timeout_s, 0.001, 10**9),
            ("--budget", self.budget_s, 0.001, 10**9),
            ("--grace", self.grace_s, 0, 10**9),
            ("--grace", self.grace_steps, 0, 10**9),
            ("--max-lost-steps", self.max_lost_steps, 0, 10**12),
            ("--max-lost-work", self.max_lost_work, 0, 10**12),
            ("--tolerance", min(self.tolerance), 0, 1e308),
            ("--time-scale", self.time_scale, 0.001, 10**9),
            ("--deviations", self.deviations, 0, 10**3),
            ("--saves", self.saves, 1, 10**6),
            ("--stagger", self.stagger_s, 0, 10**9),
            ("--requeue", self.requeue, 0, 10**6),
            ("--requeue-delay", self.requeue_delay_s, 0, 10**9),
        ):
            if value is not None and not least <= value <= most:  # NaN is none
                bound = f"from {least:g} up" if value < least else f"up to {most:g}"
                raise UsageError(
                    f"{option} is {shortened(str(value), 40)}",
                    hint=f"give a number {bound}",
                )
        for name in self.keep_env:
            if not re.fullmatch(r"[A-Za-z_]\w*\*?", name):
                raise UsageError(
                    f"--keep-env is {name!r}, which is no name of a variable",
                    hint="write NAME, or NAME* for all that begin so; never a value",
                )
        listed = [entry.finding for entry in self.known]
        for name in listed:
            if listed.count(name) > 1:
                raise UsageError(
                    f"the known finding {name!r} is listed twice",
                    hint="keep one entry, with one date",
                )
        if self.shard is not None and not 1 <= self.shard[0] <= self.shard[1] < 10**6:
            raise UsageError(
                f"--shard is {self.shard[0]}/{self.shard[1]}",
                hint="write I/N with I from 1 to N, such as 1/4",
            )
        if self.move and self.lose != "machine":
            raise UsageError(
                "--move changes the folder of a new machine, and none is lost",
                hint="add --lose machine",
            )
        if self.find_grace and self.notice is None and self.signal in ("KILL", "STOP"):
            raise UsageError(
                "--find-grace needs a warning before the reclaim, and none is given",
                hint="add --signal TERM, or the --notice of a provider",
            )
        if self.find_grace and self.grace_steps is not None:
            raise UsageError(
                "--find-grace searches in seconds, and --grace counts steps",
                hint="leave out --grace, or give it in seconds",
            )
        self._refuse_what_nothing_precedes()
        self._refuse_what_is_not_here_yet()

    def _refuse_what_nothing_precedes(self) -> None:
        if self.follow_ups and self.signal == "KILL" and self.notice is None:
            raise UsageError(
                "--then follows a first signal or notice, and none is given",
                hint="add --signal TERM, or the --notice of a provider",
            )
        if self.stagger_s is None:
            return
        if not self.to.startswith("rank:") or len(ranks_in_order(self.to)) < 2:
            raise UsageError(
                "--stagger strikes one rank after the other, and --to names no two",
                hint="name them in their order: --to rank:1,0",
            )
        if self.notice is not None:
            raise UsageError(
                "--stagger strikes ranks one by one, and a --notice tells all at once",
                hint="leave out --notice, and give --signal",
            )

    def _refuse_what_is_not_here_yet(self) -> None:
        defaults = {f.name: f.default for f in fields(self) if f.default is not MISSING}
        for entry in NOT_YET:
            option, _, value = entry.partition("=")
            name = option.replace("-", "_")
            if name not in defaults:
                continue
            given = getattr(self, name)
            if given == value if value else given != defaults[name]:
                raise UsageError(
                    f"this release does not have --{option} {value}".rstrip(),
                    hint=f"leave out --{option}",
                )

    @property
    def follow_ups(self) -> tuple[FollowUp, ...]:
        return tuple(map(FollowUp.parse, self.then))

    @property
    def signal_number(self) -> int:
        return int(getattr(signal, f"SIG{self.signal}"))

    def counts(self, finding: str) -> bool:
        """Tell whether a finding makes the verdict `violated`.

        It does not if `--fail-on` leaves it out, or if it is known and its date has
        not passed.
        """
        if self.fail_on and finding not in self.fail_on:
            return False
        return not any(
            entry.finding == finding and not entry.has_expired(self.today)
            for entry in self.known
        )


def _demand_a_program(said: str, words: tuple[str, ...]) -> None:
    if not words or not words[0].strip():
        raise UsageError(
            said,
            hint="write it after `--`; is the variable that should hold it empty?",
        )


def _one_of(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(
            f"{option} is {value!r}",
            hint=closest(value, known) or f"choose one of {', '.join(known)}",
        )
