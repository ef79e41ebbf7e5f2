"""The object store that a program under test finds: it outlives its machines.

One store serves all attempts of a trial. Each attempt reaches it through a socket in its
own network; faults count the operations of all attempts together.
"""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

from spotchaos.clock import Clock, SystemClock
from spotchaos.errors import UsageError
from spotchaos.injectors.objectstore import (
    GsStore,
    S3Store,
    gs_environment,
    s3_environment,
)
from spotchaos.injectors.storage_faults import (
    STORAGE_FAULTS,
    Kind,
    Operation,
    StorageFault,
)
from spotchaos.injectors.storage_layer import Entry, Hold
from spotchaos.model import Attempt, Injected, Request, SaveMark, Stored
from spotchaos.providers.loopback import LoopbackServer

# Objects as small as a pointer are kept with what they say.
TEXT_BYTES: Final = 2048
MOST_TEXTS: Final = 200
# Of a long run only the last requests are kept.
MOST_REQUESTS: Final = 20_000
_NOWHERE: Final = "/dev/null"
_URL = re.compile(r"\b(s3|gs)://([a-z0-9][a-z0-9._-]*[a-z0-9])")
_ABOUT_OBJECTS = frozenset({Kind.READ, Kind.WRITE, Kind.COMMIT, Kind.OBJECT, Kind.LIST})


@dataclass(frozen=True, slots=True)
class StoreWanted:
    """Which store a campaign plays to its program, and which buckets are there."""

    kind: str  # "s3" or "gs"
    buckets: tuple[str, ...]


def is_storage_fault(text: str) -> bool:
    """Tell whether a fault is one of an object store."""
    return text.partition(":")[0] in STORAGE_FAULTS


def store_wanted(
    *,
    durable: str | None,
    faults: Sequence[str],
    command: Iterable[str],
    environment: Mapping[str, str],
    allow_network: bool,
) -> StoreWanted | None:
    """Say which store a program needs; None if it has nothing to do with one.

    Args:
        durable: what outlives the machine, as it was asked for.
        faults: all that were asked for, those of the disk as well.
        command: words of the program; they name buckets.
        environment: of the program; its values name buckets.
        allow_network: a URL in the command may then be that of a real store.

    Raises:
        UsageError: both kinds of store are asked for, or a URL is that of neither.
    """
    words = [*command]
    kinds = {
        StorageFault.parse(text).store for text in faults if is_storage_fault(text)
    }
    if durable is not None and "://" in durable:
        found = _URL.match(durable)
        if found is None:
            raise UsageError(
                f"--durable is {durable!r}",
                hint="write a folder, s3://bucket/prefix or gs://bucket/prefix",
            )
        kinds.add(found[1])
        words.append(durable)
    if not kinds and not allow_network:
        kinds = {kind for kind, _ in _urls(command)}
    if not kinds:
        return None
    if len(kinds) > 1:
        raise UsageError(
            "an S3 store and a GCS store are asked for, and one can be played",
            hint="give faults of one kind, s3-... or gs-..., for the store that the"
            " program saves to",
        )
    (kind,) = kinds
    named = [*_urls(words), *_urls(environment.values())]
    buckets = [bucket for scheme, bucket in named if scheme == kind]
    return StoreWanted(kind, tuple(dict.fromkeys(buckets)))


def _urls(words: Iterable[str]) -> list[tuple[str, str]]:
    return [found for word in words for found in _URL.findall(word)]


class ProgramStore:
    """A store with its buckets; use as a context manager around the attempts of a trial.

    Args:
        wanted: which one.
        faults: armed from the start, by how they were asked for; they count the
            operations of all attempts.
    """

    def __init__(
        self, wanted: StoreWanted, faults: Mapping[str, StorageFault] | None = None
    ) -> None:
        self._wanted = wanted
        self._faults = dict(faults or {})
        self._store: S3Store | GsStore = S3Store() if wanted.kind == "s3" else GsStore()
        self._clock: Clock = SystemClock()
        self._seen = 0  # entries of the log, in attempts that have ended
        self._fired: set[str] = set()

    def __enter__(self) -> Self:
        self._store.start()
        for bucket in self._wanted.buckets:
            self._store.make_bucket(bucket)
        for fault in self._faults.values():
            self._store.arm(fault)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._store.stop()

    def environment(self, port: int) -> dict[str, str]:
        """Return what points clients to `port` of the attempt's loopback."""
        base_url = f"http://127.0.0.1:{port}"
        if self._wanted.kind == "gs":
            return gs_environment(base_url)
        # Files hold credentials too, and are found by default where none names them.
        files = ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")
        return {**s3_environment(base_url), **dict.fromkeys(files, _NOWHERE)}

    def serve(self, listener: socket.socket) -> LoopbackServer:
        """Answer on a socket of the attempt, until what is returned is stopped."""
        return self._store.serve_on(listener)

    def hold(self, number: int) -> Hold:
        """Stop the `number`th request of this attempt that puts something into it."""
        return self._store.layer.hold(number)

    def waited_s(self) -> float | None:
        """Return for how long nobody has repeated a write that was refused, in seconds.

        None: no write of this attempt was refused and never repeated with success. Of an
        object in parts that is when it is complete.
        """
        pending: dict[tuple[str, str], float] = {}
        for entry in self._store.layer.log[self._seen :]:
            where = (entry.bucket, entry.key)
            if entry.kind in (Kind.WRITE, Kind.COMMIT):
                if not _request(entry).is_accepted:
                    pending[where] = entry.at_s
                elif not entry.part:
                    pending.pop(where, None)
            if where in pending:  # whatever is asked about it: it is being repeated
                pending[where] = entry.at_s
        if not pending:
            return None
        if any(self._store.layer.is_busy(*where) for where in pending):
            return 0.0
        return self._clock.monotonic() - max(pending.values())

    def end_attempt(self) -> tuple[Stored, list[Injected]]:
        """Return what an attempt left and which faults struck it; it has ended.

        A fault that lasts is one of the machine's time: it goes with the machine on which
        it began. One that has not struck yet may strike the next.
        """
        log = [
            entry
            for entry in self._store.layer.log[self._seen :]
            if entry.kind in _ABOUT_OBJECTS
        ]
        self._seen = len(self._store.layer.log)
        found = (_injected(text, fault, log) for text, fault in self._faults.items())
        injected = [one for one in found if one is not None]
        self._fired |= {one.fault for one in injected}
        self._store.layer.disarm(fired=True)
        self._store.layer.rest()
        return self._stored(log), injected

    def not_fired(self) -> list[Injected]:
        """Return the faults that never struck."""
        return [
            Injected(text, "store", 0)
            for text in self._faults
            if text not in self._fired
        ]

    def _stored(self, log: Sequence[Entry]) -> Stored:
        objects = {f"{o.bucket}/{o.key}": o for o in self._store.objects()}
        small = [o for o in objects.values() if 0 < o.size_bytes <= TEXT_BYTES]
        texts = {
            f"{o.bucket}/{o.key}": self._store.read(o.bucket, o.key).decode(
                errors="replace"
            )
            for o in small[-MOST_TEXTS:]
        }
        abandoned: list[str] = []
        if isinstance(self._store, S3Store):
            abandoned = [f"{b}/{key}" for b, key in self._store.abandoned_uploads()]
        return Stored(
            objects={path: o.size_bytes for path, o in objects.items()},
            texts=texts,
            requests=tuple(map(_request, log[-MOST_REQUESTS:])),
            abandoned=tuple(abandoned),
        )


def with_uploads(attempt: Attempt) -> Attempt:
    """Let saves that wrote no file be of the objects that came next.

    Of a program that saves files as well those tell which save is whole.
    """
    ranks = attempt.trace.ranks
    if attempt.stored is None or any(s.paths for r in ranks.values() for s in r.saves):
        return attempt
    puts = [request for request in attempt.stored.requests if request.made_object]
    named = {
        number: replace(rank, saves=tuple(_named(rank.saves, puts)))
        for number, rank in ranks.items()
    }
    return replace(attempt, trace=replace(attempt.trace, ranks=named))


def _named(saves: Sequence[SaveMark], puts: Sequence[Request]) -> Iterator[SaveMark]:
    for index, save in enumerate(saves):
        end_s = saves[index + 1].begun_at_s if saves[index + 1 :] else math.inf
        own = [r for r in puts if save.begun_at_s <= r.at_s < end_s]
        ended_at_s = save.ended_at_s
        if own and ended_at_s is not None:
            ended_at_s = max(ended_at_s, own[-1].at_s)
        paths = dict.fromkeys(request.path for request in own)
        yield replace(save, paths=tuple(paths), ended_at_s=ended_at_s)


def on_last_save(
    fault: StorageFault, recorded: Attempt, saves: Sequence[SaveMark]
) -> StorageFault:
    """Return a fault with a number in place of `:last`.

    Args:
        fault: as it was asked for.
        recorded: an uninterrupted run, whose requests tell which number that is.
        saves: those that the attempt in question makes, in order.
    """
    if not fault.is_on_last_save or not saves:
        return fault
    done = [r for r in _strikable(fault, recorded) if r.at_s < saves[-1].begun_at_s]
    return fault.on_last_save(done=len(done))


def injected_step_by(fault: StorageFault, recorded: Attempt) -> int | None:
    """Return after how many steps a fault first strikes an uninterrupted run, or None."""
    found = _strikable(fault, recorded)[fault.first - 1 :]
    if not found:
        return None
    ranks = recorded.trace.ranks.values()
    return max((sum(m.t_s <= found[0].at_s for m in r.steps) for r in ranks), default=0)


def _strikable(fault: StorageFault, recorded: Attempt) -> list[Request]:
    requests = () if recorded.stored is None else recorded.stored.requests
    return [
        request
        for request in requests
        if fault.can_inject(Operation(name=request.operation, kind=Kind(request.kind)))
    ]


def _injected(text: str, fault: StorageFault, log: Sequence[Entry]) -> Injected | None:
    name = f"{fault.store}-{fault.name}"
    hit = [entry for entry in log if entry.fault == name]
    if not hit:
        return None
    return Injected(
        text,
        "store",
        len(hit),
        at_s=hit[0].at_s,
        path=f"{hit[0].bucket}/{hit[0].key}",
    )


def _request(entry: Entry) -> Request:
    return Request(
        at_s=entry.at_s,
        operation=entry.operation,
        kind=entry.kind,
        path=f"{entry.bucket}/{entry.key}",
        status=entry.status,
        part=entry.part,
        fault=entry.fault,
    )
