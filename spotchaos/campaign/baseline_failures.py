"""Why an uninterrupted program is no baseline, and what of it is not its own doing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spotchaos.config.options import BY_NAME
from spotchaos.launch.isolation.credentials import wanted_in
from spotchaos.model import Attempt, Ended, Finding
from spotchaos.trial.trial import main_rank

# What programs print where they meet what an attempt is kept from, and what to do then.
# The libraries word it differently, so that each line takes the words of several.
_NETWORK = (
    re.compile(
        r"name resolution|Name or service not known|getaddrinfo failed|gaierror"
        r"|Network is unreachable|No route to host|NameResolutionError|Max retries"
        r" exceeded|Could not resolve host|Could not connect to the endpoint|ConnectError"
        r"|couldn't connect to '?https?://|outgoing traffic has been disabled"
        r"|[Oo]ffline ?[Mm]ode|LocalEntryNotFound",
    ),
    (
        "attempts reach no network: fetch what it downloads once before, by a run without"
        " spotchaos, and switch off trackers; or give --allow-network"
    ),
)
_ALWAYS = (
    (
        re.compile(
            r"NoCredentials|Unable to locate credentials|PartialCredentials"
            r"|DefaultCredentialsError|api_key not configured|No API key"
        ),
        (
            "attempts have no credentials: --durable s3://BUCKET/PREFIX or gs://... gives it"
            " a store of its own to save to; switch off other services"
        ),
    ),
    (
        re.compile(
            r"no new privileges|must be owned by uid 0 and have the setuid bit"
            r"|effective uid is not 0"
        ),
        (
            "sudo and setuid programs gain nothing inside an attempt: leave them out of the"
            " command, or run spotchaos itself as that user"
        ),
    ),
    (
        re.compile(r"current process has\s+finished its bootstrapping phase"),
        (
            "a process that is spawned (a loader's worker) runs the script anew: put what"
            " trains below 'if __name__ == \"__main__\":'"
        ),
    ),
)


_STRANGE_OPTION = re.compile(
    r"unrecognized arguments?|no such option|unknown (option|argument|flag)",
    re.IGNORECASE,
)


def failure_of(
    attempt: Attempt,
    limit_s: float,
    *,
    allow_network: bool,
    removed: Sequence[str] = (),
    notice: str | None = None,
) -> Finding:
    """Say in one sentence why the uninterrupted program is no baseline.

    Args:
        attempt: the run, which did not finish.
        limit_s: how long it was given.
        allow_network: it could reach the network.
        removed: variables that it does not have, since they give access to accounts.
        notice: the story of the metadata service that it found; None: there was none.
    """
    last = "\n".join(attempt.output_tail.strip().splitlines()[-8:])
    quoted = (
        f"; its last lines:\n{last}"
        if last
        else "; it printed nothing, or nothing that had left its buffer"
    )
    if attempt.ended is Ended.HUNG:
        stacks = f"\n{attempt.stacks}" if attempt.stacks else ""
        return Finding(
            "baseline-failed",
            f"the program had not ended after {limit_s:g} s{quoted}{stacks}",
            hint=kept_from(attempt, allow_network=allow_network, removed=removed)
            or "give it a shorter run, or a longer --timeout",
        )
    if attempt.refused_write is not None:
        return Finding(
            "baseline-failed",
            f"the program may not write to {attempt.refused_write!r} here{quoted}",
            hint="let it write below its folder, or name the place with --durable",
        )
    rank = main_rank(attempt)
    where = None
    if rank is not None and rank.exception is not None and rank.exception.file:
        where = {"file": rank.exception.file, "line": rank.exception.line}
    alone = "make it run to its end without spotchaos first"
    if notice is not None:
        alone += (
            f"; if it does, it may take for an end what the service of {notice} answers"
            " while there is no notice (a 404, or a refusal)"
        )
    if removed:
        few = ", ".join(removed[:4]) + (", ..." if len(removed) > 4 else "")
        alone += f"; attempts do not have {few} (--keep-env)"
    return Finding(
        "baseline-failed",
        f"the program ended with status {attempt.exit_code} by itself{quoted}",
        hint=kept_from(attempt, allow_network=allow_network, removed=removed) or alone,
        where=where,
    )


def kept_from(
    attempt: Attempt, *, allow_network: bool, removed: Sequence[str] = ()
) -> str | None:
    """Return what to do about a failure that the program is not to blame for."""
    rank = main_rank(attempt)
    said = attempt.output_tail[-8000:]
    if _STRANGE_OPTION.search(said):
        ours = [
            word
            for word in attempt.command
            if word.partition("=")[0].removeprefix("--") in BY_NAME
            and word.startswith("--")
        ]
        if ours:
            return f"options of spotchaos, as {ours[0]}, stand before the command"
    if rank is not None and rank.exception is not None:
        said += f"\n{rank.exception.type}: {rank.exception.message}"
    name = wanted_in(said, removed)
    if name is not None:
        return (
            f"spotchaos took {name} away, as what gives access to an account:"
            f" --keep-env {name} leaves it to every attempt"
        )
    rows = _ALWAYS if allow_network else (_NETWORK, *_ALWAYS)
    return next((hint for words, hint in rows if words.search(said)), None)
