"""Was the interruption carried out, and did the program answer a signal as it should?"""

from __future__ import annotations

from collections.abc import Iterator

from spotchaos.model import Attempt, Ended, Finding, Note, SaveMark
from spotchaos.oracles.lineage import Case, ResumedAttempt
from spotchaos.oracles.rank_agreement import trained_behind, was_not_passed_on
from spotchaos.oracles.resume_points import WRITES
from spotchaos.oracles.wording import ending_of, exception_of, steps_of, where_of

# A reclaim is a little late by the clock of the harness, never early.
EARLY_S = 0.005
# What each provider wants of a request before it tells anything.
_TOKEN = "a session token, fetched with PUT /latest/api/token"
_WANTS = {
    "aws": _TOKEN,
    "alibaba": _TOKEN,
    "azure": "the header `Metadata: true` and an api-version",
    "gcp": "the header `Metadata-Flavor: Google`",
}


def judge_interruption(case: Case) -> Iterator[Finding]:
    """Name kill points never reached, wrong exit statuses and signals not heeded."""
    yield from _not_reached(case)
    for resumed in case.links:
        if resumed.attempt.trouble is not None:
            yield Finding(
                "not-reached", resumed.attempt.trouble, attempt=resumed.number
            )
    for resumed in case.links:
        yield from _faults_not_reached(resumed)
    yield from _not_followed_up(case)
    for resumed in case.links:
        if _was_warned(resumed.attempt):
            yield from _status(case, resumed)
            # Who waits for a rank that has left does not get as far as its own save.
            if not resumed.attempt.stuck:
                yield from _reaction(case, resumed)


def note_interruption(case: Case) -> Iterator[Note]:
    """Say of each notice how its time was played."""
    for resumed in case.links:
        notice = resumed.attempt.notice
        if notice is None:
            continue
        real_s = notice.grace_s / notice.time_scale
        asked = "never asked"
        if notice.asked:
            asked = f"asked {_times(notice.asked)}"
        if notice.refused:
            asked += f", and was refused {_times(notice.refused)} after the notice"
        if notice.proxy and notice.is_served:
            asked += (
                f"; the proxy of {notice.proxy} was passed by, and stands before the"
                " metadata service wherever NO_PROXY does not except its address"
            )
        yield Note(
            "notice-played",
            f"{notice.story} gave {notice.grace_s:g} s, played in {real_s:.3g} s (time"
            f" scale {notice.time_scale:.3g}); the program {asked}",
            attempt=resumed.number,
        )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _faults_not_reached(resumed: ResumedAttempt) -> Iterator[Finding]:
    for injected in resumed.attempt.injected:
        if not injected.times:
            made = f"attempt {resumed.number} made no such operation on a checkpoint"
            if injected.kind == "store":
                made = "no attempt asked its object store for so many such operations"
            hint = "name an earlier one, or `:last` for the last save"
            if injected.fault.partition(":")[2] in ("", "1", "1+"):
                made = made.replace("so many such operations", "such an operation")
                hint = "name a fault of what the program does do; none comes earlier"
            yield Finding(
                "not-reached",
                f"the fault {injected.fault!r} never struck: {made}",
                hint=hint,
                attempt=resumed.number,
                step=resumed.end,
            )


def _not_followed_up(case: Case) -> Iterator[Finding]:
    """Name a signal that was to follow the first one and was not sent in any attempt."""
    injected = [
        resumed
        for resumed in case.links
        if resumed.attempt.sent or resumed.attempt.unsent
    ]
    if not injected:
        return
    last = injected[-1]
    for text in last.attempt.unsent:
        if all(text in resumed.attempt.unsent for resumed in injected):
            yield Finding(
                "not-reached",
                f"{text} was to follow {_warning(last.attempt)}, and attempt"
                f" {last.number} ended before",
                hint="name an earlier site, or fewer seconds: both count from the first"
                " signal or notice",
                attempt=last.number,
                step=last.end,
            )


def _not_reached(case: Case) -> Iterator[Finding]:
    # A drawn one drops off the plan, unless it is the first: then nothing was proved.
    if case.trial.dropped:
        return
    for resumed in case.links:
        if not resumed.attempt.reached and not _explains_itself(case, resumed):
            yield Finding(
                "not-reached",
                f"attempt {resumed.number} ended before it reached its kill point in"
                f" {case.trial.plan!r}",
                hint=_hint_of(resumed.attempt),
                attempt=resumed.number,
                step=resumed.end,
            )


def _explains_itself(case: Case, resumed: ResumedAttempt) -> bool:
    """Tell whether a resume failed, for which it is convicted: there was no later."""
    if not resumed.is_resume or (case.accept_refusal and not resumed.trained):
        return False
    return resumed.attempt.ended in (Ended.FAILED, Ended.HUNG)


def _hint_of(attempt: Attempt) -> str:
    stored = () if attempt.stored is None else attempt.stored.requests
    saves = any(rank.saves for rank in attempt.trace.ranks.values())
    if any(request.kind in WRITES for request in stored) and not saves:
        return (
            "its checkpoints go to the object store without a file, which is no save to"
            " the probe: write `upload-part:N`, before the Nth request that puts"
            " something there"
        )
    return (
        "count how often the site occurs (`--json`, coverage), or name an earlier one"
    )


def _was_warned(attempt: Attempt) -> bool:
    """Whether a signal that can be handled, or a notice, came before the reclaim."""
    return (
        attempt.signal not in (None, "KILL", "STOP") or attempt.notice_at_s is not None
    )


def _same_status(code: int) -> int:
    """Return one spelling for death by a signal: the shell's 128 + n."""
    return 128 - code if code < 0 else code


def _status(case: Case, resumed: ResumedAttempt) -> Iterator[Finding]:
    attempt = resumed.attempt
    if attempt.ended in (Ended.RECLAIMED, Ended.HUNG) or attempt.exit_code is None:
        return
    if resumed.joined is not None and resumed.end >= case.horizon:
        return  # It finished within the grace window, which is a success.
    if case.exit_codes is not None:
        if _same_status(attempt.exit_code) in map(_same_status, case.exit_codes):
            return
        wanted = " or ".join(map(str, case.exit_codes))
        said = f"exited with {attempt.exit_code}, and {wanted} was declared"
    elif attempt.exit_code == 0:
        missing = case.horizon - resumed.end
        said = f"exited with 0 although {steps_of(missing)} were missing"
    else:
        return
    yield Finding(
        "exit-code",
        f"stopped by {attempt.signal or 'a notice'} after step {resumed.end}, attempt"
        f" {resumed.number} {said}",
        hint="0 tells the scheduler that the run is done: exit with 143 (or what your"
        " scheduler requeues) after a signal, and with 0 only when training finished",
        attempt=resumed.number,
        step=resumed.end,
        where=where_of(exception_of(attempt)),
    )


def _reaction(case: Case, resumed: ResumedAttempt) -> Iterator[Finding]:
    """Judge what happened between the warning and the reclaim (rules.md 6)."""
    attempt = resumed.attempt
    warned_at_s = _warned_at_s(attempt)
    if warned_at_s is None or attempt.signal == "STOP":
        return
    if attempt.notice is not None and not attempt.notice.reclaimed:
        yield from _advice(case, resumed)
        return
    if trained_behind(attempt):
        return  # Who was not told cannot react; that they were not is another finding.
    begun = _saves_since(attempt, warned_at_s)
    if attempt.ended is not Ended.RECLAIMED:
        finished = attempt.ended is Ended.FINISHED or resumed.end >= case.horizon
        if finished and not has_reacted(case, resumed):
            yield _unmoved(resumed)
        return
    is_deaf = not begun or (
        _has_not_heard(attempt) and _are_usual(case, resumed, begun)
    )
    if _came_early(attempt):
        # Nobody can keep a deadline that is not kept; nor was it an answer to hear nothing.
        if is_deaf and not _was_cut_short(attempt):
            yield _too_early(resumed)
        return
    if is_deaf:
        if resumed.trained <= (attempt.signalled_step or 0):
            return  # It stopped training, and was still on its way out.
        if _had_no_time_to_ask(attempt):
            yield _hasty(resumed)
            return
        yield _ignored(resumed, saved=bool(begun))
    elif not _was_whole(case, resumed):
        # A machine that is taken away has no status; what was raised before, it has.
        said = f" ({ending_of(attempt)})" if exception_of(attempt) else ""
        yield Finding(
            "deadline-missed",
            f"after {_warning(attempt)} attempt {resumed.number} began a save, and no"
            f" checkpoint of that step or a later one was whole when the machine went"
            f"{_used(attempt, begun, warned_at_s)}{said}",
            hint="make the save shorter than the grace window: write to the local disk"
            " first, leave out what can be computed again",
            attempt=resumed.number,
            step=resumed.end,
        )


def has_reacted(case: Case, resumed: ResumedAttempt) -> bool:
    """Tell whether an attempt that trained to its end shows that its warning was heard.

    It saved, and it is known to have heard or saved where it otherwise does not: who
    trains and saves as ever shows nothing.
    """
    attempt = resumed.attempt
    warned_at_s = _warned_at_s(attempt)
    if warned_at_s is None:
        return False
    begun = _saves_since(attempt, warned_at_s)
    return bool(begun) and (has_heard(attempt) or not _are_usual(case, resumed, begun))


def has_heard(attempt: Attempt) -> bool:
    """Tell whether a signal or a notice is known to have come to what trains."""
    notice = attempt.notice
    if attempt.signal is not None:
        return not (attempt.is_deaf or was_not_passed_on(attempt))
    return notice is not None and notice.asked_after > notice.refused


def _unmoved(resumed: ResumedAttempt) -> Finding:
    attempt, notice = resumed.attempt, resumed.attempt.notice
    said = ""
    if notice is not None and notice.is_served and not notice.asked_after:
        said = ": it asked the metadata service for nothing after it"
    elif notice is not None and notice.asked_after == notice.refused > 0:
        said = ": every request after it was refused"
    return Finding(
        "not-reached",
        f"attempt {resumed.number} finished before the deadline without having reacted to"
        f" {_warning(attempt)}{said}, which proves nothing",
        hint="interrupt it earlier, or compress the provider's time further with"
        " --time-scale",
        attempt=resumed.number,
        step=resumed.end,
    )


def _too_early(resumed: ResumedAttempt) -> Finding:
    return Finding(
        "not-reached",
        f"the machine of attempt {resumed.number} was gone before the deadline of"
        f" {_warning(resumed.attempt)}, and until then the program had not reacted, which"
        " proves nothing",
        hint="run it again with a longer --grace",
        attempt=resumed.number,
        step=resumed.end,
    )


def _has_not_heard(attempt: Attempt) -> bool:
    """Tell whether no word of the end can have come to what trains.

    After a notice it asked for nothing or was refused every time; a signal went to its
    launcher alone.
    """
    notice = attempt.notice
    if attempt.signal is not None:
        return was_not_passed_on(attempt)
    if notice is None:
        return False
    if not notice.asked_after:
        return notice.is_served
    return notice.asked_after == notice.refused


def _had_no_time_to_ask(attempt: Attempt) -> bool:
    """Tell whether a notice was over before a program that asks now and then had asked."""
    notice = attempt.notice
    if notice is None or attempt.signal is not None:
        return False
    return notice.is_served and notice.is_hasty and not notice.asked_after


def _hasty(resumed: ResumedAttempt) -> Finding:
    notice = resumed.attempt.notice
    assert notice is not None
    real_s = notice.grace_s / notice.time_scale
    return Finding(
        "not-reached",
        f"attempt {resumed.number} asked for nothing in the {real_s:.3g} s in which"
        f" {notice.story} was played, which proves nothing of a program that asks now and"
        " then",
        hint="interrupt it at a site (`--kill-at step-end:N`), where the training can wait"
        " for the next request, or in the middle of a longer run",
        attempt=resumed.number,
        step=resumed.end,
    )


def _are_usual(case: Case, resumed: ResumedAttempt, saves: list[SaveMark]) -> bool:
    """Tell whether saves are those of the uninterrupted run: no answer to a notice."""
    joined = resumed.joined or 0
    usual = {*case.habit.steps, case.horizon}
    return all(joined + save.of_step in usual for save in saves)


def _ignored(resumed: ResumedAttempt, *, saved: bool = False) -> Finding:
    attempt, notice = resumed.attempt, resumed.attempt.notice
    name = "signal-ignored" if attempt.notice_at_s is None else "notice-ignored"
    hint = (
        "set a flag in the handler, look at it after every step (in evaluation too),"
        " save, and leave"
    )
    said = ""
    if was_not_passed_on(attempt):
        said = f"; the {attempt.target}, which alone got it, did not pass it on"
        hint = (
            "a shell or script in front keeps the signal to itself: start the program"
            " with `exec`, or in the background, with a trap that passes it on"
        )
    if notice is not None and attempt.signal is None:
        hint = (
            "ask the provider's metadata service every few seconds, and save as soon as"
            " it tells of the end"
        )
        if not notice.asked:
            said = "; it never asked the metadata service"
            hint += (
                "; if it does ask, its pauses are longer than this run, or a proxy that it"
                " names stands before the address (NO_PROXY)"
            )
        elif not notice.asked_after:
            said = "; it did not ask the metadata service again"
        elif notice.refused == notice.asked_after:
            said = f"; all {notice.refused} requests since were refused"
            if notice.refused == 1:
                said = "; its one request since was refused"
            if notice.refusal:
                said += f" (the last: {notice.refusal})"
            wants = _WANTS.get(notice.provider)
            hint = (
                "heed the answers: "
                + (f"{notice.provider} wants {wants}; " if wants else "")
                + "429 and 5xx want another try, 404 another path"
            )
    return Finding(
        name,
        f"{_warning(attempt)} came at step {attempt.signalled_step}, and attempt"
        f" {resumed.number} trained on to step {resumed.end}"
        f" {'and saved only where it always does' if saved else 'without beginning a save'}"
        f"{said}",
        hint=hint,
        attempt=resumed.number,
        step=resumed.end,
    )


def _advice(case: Case, resumed: ResumedAttempt) -> Iterator[Finding]:
    """Judge what a program did about a notice that no reclaim follows."""
    attempt, notice = resumed.attempt, resumed.attempt.notice
    assert notice is not None
    by_itself = attempt.ended in (Ended.EXITED, Ended.FAILED, Ended.FINISHED)
    if (
        not by_itself
        or resumed.end >= case.horizon
        or notice.story.endswith("withdrawn")
    ):
        return
    yield Finding(
        "stopped-for-advice",
        f"{notice.story} is no notice of an end, and attempt {resumed.number} stopped at"
        f" step {resumed.end} of {case.horizon}",
        hint="save when advice comes, and train on: a reclaim may never follow",
        attempt=resumed.number,
        step=resumed.end,
    )


def _saves_since(attempt: Attempt, moment_s: float) -> list[SaveMark]:
    return [
        save
        for rank in attempt.trace.ranks.values()
        for save in rank.saves
        if save.begun_at_s >= moment_s or (save.ended_at_s or 0.0) >= moment_s
    ]


def _came_early(attempt: Attempt) -> bool:
    """Whether the machine went before the time that its notice or signal had given."""
    notice, reclaimed_at_s = attempt.notice, attempt.reclaimed_at_s
    if any(sent.signal == "KILL" and sent.target == "all" for sent in attempt.sent):
        return True
    if notice is None or reclaimed_at_s is None:
        return False
    return reclaimed_at_s < notice.deadline_at_s - EARLY_S


def _was_cut_short(attempt: Attempt) -> bool:
    """Tell whether the plan, or the program itself, wanted the early end, and it knew."""
    notice = attempt.notice
    if notice is None:
        return True
    return notice.is_cut_short and not _has_not_heard(attempt)


def _used(attempt: Attempt, begun: list[SaveMark], warned_at_s: float) -> str:
    """Say how much of the window was used, in the provider's own seconds."""
    notice = attempt.notice
    if notice is None:
        return ""
    begun_s = (begun[0].begun_at_s - warned_at_s) * notice.time_scale
    return (
        f": the save began after {max(0.0, begun_s):.3g} s of the {notice.grace_s:g} s"
        f" that {notice.provider} gives"
    )


def _was_whole(case: Case, resumed: ResumedAttempt) -> bool:
    """Whether a resume point of the warned step or a later one was whole in time."""
    step = (resumed.joined or 0) + (resumed.attempt.signalled_step or 0)
    following = [k for k in case.links if k.number == resumed.number + 1]
    if not following or (following[0].joined or 0) >= max(1, step):
        # Who resumed from it proves that it was whole, whatever was seen of its end.
        return True
    return any(
        s.attempt == resumed.number and s.is_whole and s.step >= step
        for s in following[0].saved
    )


def _warned_at_s(attempt: Attempt) -> float | None:
    if attempt.notice_at_s is not None:
        return attempt.notice_at_s
    if attempt.signalled_step is None:
        return None
    if attempt.signalled_step == 0:
        return attempt.started_at_s
    # All ranks had completed that step when the signal was sent.
    moments = [
        mark.t_s
        for rank in attempt.trace.ranks.values()
        for mark in rank.steps
        if mark.step == attempt.signalled_step
    ]
    return max(moments, default=None)


def _warning(attempt: Attempt) -> str:
    return "the notice" if attempt.notice_at_s is not None else f"SIG{attempt.signal}"
