"""The final screen: the verdict, what was restored from where, one hint, one replay line.

`screen` returns lines of styled spans; the terminal gives them colours, a file takes
their text. At most one screen in the usual cases.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from spotchaos.report import exploration_screen
from spotchaos.report.gate import gate_remarks, uncounted
from spotchaos.report.redact import clean, cleaned, one_line
from spotchaos.report.replaying import replay_line

WIDTH = 88
MOST_FINDINGS = 4
MOST_COMPONENTS = 10
MOST_PLANS = 4
MOST_QUOTED = 12
MOST_QUOTED_LINES = 3  # of the screen, for one line of the program

REFERENCE_TESTED = (
    "tested: the built-in reference trainer, not a program of yours (none was named)"
)

Span = tuple[str, str]  # text, style of rich
Line = list[Span]

VERDICT_STYLE = {"held": "bold green", "violated": "bold red", "unknown": "bold yellow"}


def screen(document: Mapping[str, Any], *, width: int = WIDTH) -> list[Line]:
    """Return the screen of a report, verdict first."""
    # The program chooses many of these words; none may move the cursor or end a line.
    trouble = clean(str(document.get("trouble") or ""))
    document = cleaned(document, one_line)
    lines: list[Line] = []
    if document.get("reference_trainer"):
        lines.append([(REFERENCE_TESTED, "yellow")])
    lines.append(_headline(document))
    if trouble:
        lines += [[], *_trouble(trouble, width=width)]
    if document["verdict"] == "held":
        lines += [[], *_wrapped(_what_held(document), indent=2, width=width)]
        lines += _wrapped(_reclaim_costs(document), indent=2, width=width)
    explored = exploration_screen.counted(document)
    if explored and not trouble:
        lines += [[], *_wrapped(explored, indent=2, width=width)]
    findings = _grouped(document)
    if findings:
        lines.append([])
        lines += _findings(findings, width=width)
        classes = exploration_screen.class_lines(document)
        lines += [[]] if classes else []
        for text in classes:
            own = len(text) - len(text.lstrip())
            lines += _wrapped(text.lstrip(), indent=2 + own, width=width, most=2)
        number, attempt = _exemplar(document, findings)
        if attempt is not None:
            lines += _restored(document, number, attempt, width=width)
    advice = (findings[0]["hint"] if findings else None) or document.get("hint")
    if advice:
        lines += [[], *_labelled("Hint: ", advice, style="bold", width=width)]
    remarks = _remarks(document, width=width)
    if remarks:
        lines += [[], *remarks]
    replay = _replay_line(document, findings)
    if replay:
        lines += [[], [("  Replay: ", "bold"), (replay, "")]]
    return lines


def plain(lines: Iterable[Line]) -> str:
    """Return the text of styled lines."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def _headline(document: Mapping[str, Any]) -> Line:
    verdict = document["verdict"]
    trials = document["trials"]
    line: Line = [(verdict.upper(), VERDICT_STYLE.get(verdict, "bold"))]
    said = f"  {document['promise']}, seed {document['seed']}"
    if trials:
        same = sum(t["verdict"] == verdict for t in trials)
        of = f" of {len(trials)}" if same != len(trials) else ""
        said += f", {same}{of} trial{'s' if len(trials) != 1 else ''}"
    if verdict == "violated" or (verdict == "held" and document["findings"]):
        said += f"; holds up to: {document.get('holds_up_to') or 'nothing'}"
    if document.get("interrupted"):
        said += "; interrupted before the end"
    return [*line, (said, "")]


def _trouble(text: str, *, width: int) -> list[Line]:
    """Return a sentence, and below it the program's own last lines if it quotes them."""
    sentence, *quoted = text.strip().split("\n")
    lines = _wrapped(sentence, indent=2, width=width)
    kept = [line.rstrip() for line in quoted if line.strip()][-MOST_QUOTED:]
    return lines + [each for line in kept for each in _quoted(line, width=width)]


def _quoted(line: str, *, width: int) -> list[Line]:
    """Return a line of the program's own: what it names often stands at its end."""
    wrapped = textwrap.wrap(
        line.expandtabs(),
        width=width,
        initial_indent="    | ",
        subsequent_indent="    |   ",
        max_lines=MOST_QUOTED_LINES,
        placeholder=" ...",
        replace_whitespace=False,
    )
    return [[(each, "dim")] for each in wrapped]


def _what_held(document: Mapping[str, Any]) -> str:
    resumed = [
        a for t in document["trials"] for a in t["attempts"] if a.get("restored")
    ]
    most = max((a["lost_steps"] for a in resumed), default=0)
    kept = {
        "resumes": "came back from its newest whole checkpoint and finished",
        "state": "came back with the whole state of one step",
        "samples": "trained on each sample as often as the baseline",
        "bitwise": "was bit for bit the baseline's from where it joined, to the end",
    }.get(document["promise"], "kept the promise")
    count = len(resumed)
    if document["findings"]:
        return (
            "Nothing that counts was found; what is below is known or left out by"
            " --fail-on."
        )
    explored = document["coverage"].get("crash_states")
    left = (document.get("baseline") or {}).get("outputs")
    if left and left["alone"]:
        return _what_is_left(document, left, explored)
    if isinstance(explored, Mapping) and explored.get("held"):
        # The report's only trial is an example of them.
        count = explored["held"]
        states = "the crash state" if count == 1 else f"one of {count} crash states"
        return f"Each resume from {states} {kept}."
    refused = sum(
        a["number"] > 1 and a["ended"] == "failed" and not a["steps"]
        for t in document["trials"]
        for a in t["attempts"]
    )
    if refused and not count:
        who = "The attempt" if refused == 1 else f"Each of {refused} attempts"
        return f"{who} after an interruption refused to go on, with an error."
    if not count:
        return "No attempt after an interruption had anything to resume from."
    each = "The resumed attempt" if count == 1 else f"Each of {count} resumed attempts"
    again = f"at most {most} step{'s' if most != 1 else ''}" if most else "no step"
    return f"{each} {kept}; {again} done again."


def _reclaim_costs(document: Mapping[str, Any]) -> str:
    """Say what a reclaim costs this program; empty: that was not measured."""
    timing = document.get("timing") or {}
    start, lost = timing.get("resumed_start_s"), timing.get("lost_steps")
    # Where crash states were explored, nobody was killed at the usual moments.
    if not start or not lost or document["coverage"].get("crash_states"):
        return ""
    seconds, steps = start["median"], round(lost["median"])
    return (
        f"A reclaim costs you {seconds:.{0 if seconds >= 10 else 1}f} s and {steps}"
        f" step{'' if steps == 1 else 's'} (`spotchaos cost` says how many dollars)."
    )


def _what_is_left(
    document: Mapping[str, Any], left: Mapping[str, Any], explored: Any
) -> str:
    """Say what held of a program that is judged by its outputs."""
    count = sum(len(trial["attempts"]) - 1 for trial in document["trials"])
    when = f"after {'an interruption' if count == 1 else f'{count} interruptions'}"
    if isinstance(explored, Mapping) and explored.get("held"):
        count = explored["held"]
        when = f"from {'the crash state' if count == 1 else f'{count} crash states'}"
    return (
        f"Each run that went on {when} left the same outputs: {left['said']}, each there"
        " once, whole and equal."
    )


def _grouped(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each finding once, as its first trial tells it, with all its trials."""
    groups = []
    apart = uncounted(document)
    # What counts comes first; the order of causes is kept otherwise.
    for entry in sorted(document["findings"], key=lambda e: e["name"] in apart):
        told: dict[str, Any] = {"message": "", "hint": None, "where": None, "trial": 0}
        for trial in document["trials"]:
            match = next(
                (f for f in trial["findings"] if f["name"] == entry["name"]), None
            )
            if match is not None:
                told = {**match, "trial": trial["number"]}
                break
        groups.append(
            {
                **told,
                "name": entry["name"],
                "trials": entry["trials"],
                "counts": entry["name"] not in apart,
            }
        )
    return groups


def _findings(findings: list[dict[str, Any]], *, width: int) -> list[Line]:
    lines: list[Line] = []
    for finding in findings[:MOST_FINDINGS]:
        style = "bold red" if finding["counts"] else "bold"
        line: Line = [(f"  {finding['name']}", style)]
        if not finding["counts"]:
            line.append(("  does not count", "dim"))
        if finding["trials"]:
            line.append((f"  {trials_text(finding['trials'])}", "dim"))
        where = finding.get("where")
        if where and where.get("file"):
            place = f"{where['file']}:{where.get('line', '?')}"
            line.append((f"  {place}", "dim"))
        lines.append(line)
        if finding["message"]:
            lines += _wrapped(finding["message"], indent=4, width=width, most=3)
    rest = findings[MOST_FINDINGS:]
    if rest:
        names = ", ".join(f["name"] for f in rest)
        lines += _wrapped(f"and {len(rest)} more: {names}", indent=2, width=width)
    return lines


def _exemplar(
    document: Mapping[str, Any], findings: list[dict[str, Any]]
) -> tuple[int, Mapping[str, Any] | None]:
    """Return the trial and attempt whose table says most: those of the first finding."""
    for finding in findings:
        for trial in document["trials"]:
            if trial["number"] != finding["trial"]:
                continue
            with_table = [a for a in trial["attempts"] if a.get("restored")]
            for attempt in with_table:
                if attempt["number"] == finding.get("attempt"):
                    return trial["number"], attempt
            if with_table:
                return trial["number"], with_table[0]
    return 0, None


def _restored(
    document: Mapping[str, Any], number: int, attempt: Mapping[str, Any], *, width: int
) -> list[Line]:
    trial = next(t for t in document["trials"] if t["number"] == number)
    before = next(
        (a for a in trial["attempts"] if a["number"] == attempt["number"] - 1), None
    )
    killed = (before or {}).get("kill_point") or trial["plan"]
    joined = attempt["started_from"]
    origin = "no known step" if joined is None else f"step {joined}"
    lost = attempt.get("lost_steps") or 0
    again = f"; {lost} step{'s' if lost != 1 else ''} done again" if lost else ""
    head = (
        f"Trial {number}, interrupted at {killed}: attempt"
        f" {attempt['number']} joins the baseline at {origin}{again}."
    )
    lines: list[Line] = [[], *_wrapped(head, indent=2, width=width), []]
    lines += restored_table(attempt, width=width)
    divergence = attempt.get("divergence")
    if divergence:
        lines += _divergence(divergence, width=width)
    return lines


def restored_table(attempt: Mapping[str, Any], *, width: int) -> list[Line]:
    """Return the table of components and where each came from."""
    ranks = attempt["restored"]
    shown = _distinct_ranks(ranks)
    joined = attempt["started_from"]
    components = list(dict.fromkeys(c for rank in shown for c in ranks[rank]))
    # What went wrong comes first when not everything fits.
    components.sort(
        key=lambda c: not any(is_amiss(ranks[r].get(c), joined) for r in shown)
    )
    name_width = max((len(c) for c in components), default=0)
    heading = "".join(
        f"{'restored from' if len(shown) == 1 else f'rank {rank}':<15}"
        for rank in shown
    )
    lines: list[Line] = [
        [(f"    {'component':<{max(name_width, 9)}}  {heading}".rstrip(), "dim")]
    ]
    for component in components[:MOST_COMPONENTS]:
        line: Line = [(f"    {component:<{max(name_width, 9)}}  ", "")]
        for rank in shown:
            value = ranks[rank].get(component)
            amiss = is_amiss(value, joined)
            line.append((f"{_origin(value):<15}", "red" if amiss else ""))
        lines.append(line)
    rest = components[MOST_COMPONENTS:]
    if rest:
        lines += _wrapped(
            f"{len(rest)} more, as they should be", indent=4, width=width, style="dim"
        )
    return lines


def is_amiss(value: Any, joined: Any) -> bool:
    """Tell whether a component came from elsewhere than the step that was joined."""
    if value is None:
        return False
    if not isinstance(value, int):
        return True
    return bool(value != joined)


def _distinct_ranks(ranks: Mapping[str, Any]) -> list[str]:
    """Return the ranks to show: one where all agree, else the first four."""
    names = sorted(ranks, key=lambda r: int(r) if str(r).isdecimal() else 0)
    if all(ranks[name] == ranks[names[0]] for name in names):
        return names[:1]
    return names[:4]


def _origin(value: Any) -> str:
    if value is None:
        return "-"
    return f"step {value}" if isinstance(value, int) else str(value)


def _divergence(divergence: Mapping[str, Any], *, width: int) -> list[Line]:
    text = (
        f"First difference: step {divergence['step']}, rank {divergence['rank']}:"
        f" {', '.join(divergence['components'])}"
    )
    if divergence.get("tensor"):
        text += f" ({divergence['tensor']}"
        if divergence.get("elements") is not None:
            count = divergence["elements"]
            text += f", {count} element{'' if count == 1 else 's'}"
        if divergence.get("max_ulp") is not None:
            text += f", up to {divergence['max_ulp']} ULP"
        text += ")"
    return [[], *_wrapped(text, indent=2, width=width, most=3)]


def _remarks(document: Mapping[str, Any], *, width: int) -> list[Line]:
    """Return what bounds the verdict: hidden files, what is not protected, what is left."""
    said = gate_remarks(document)
    if document.get("shard"):
        said.append(
            f"this is part {document['shard']} of the campaign; `spotchaos report`"
            " merges all parts"
        )
    baseline = document.get("baseline") or {}
    said += [note["message"] for note in baseline.get("notes", ())]
    told = {n["name"] for n in baseline.get("notes", ())}
    said += [
        _note_text(document, entry)
        for entry in document["notes"]
        if entry["name"] not in told
    ]
    said += _compressed(document)
    said += _faults(document)
    dropped = sum(len(trial.get("dropped", ())) for trial in document["trials"])
    if dropped:
        said.append(
            f"{dropped} drawn kill point{'s were' if dropped != 1 else ' was'} not"
            " reached and dropped"
        )
    said += _not_run(document)
    said += exploration_screen.not_visited(document)
    if document.get("unprotected"):
        said += [f"not protected: {text}" for text in document["unprotected"]]
    said += (document.get("environment") or {}).get("limits") or ()
    lines: list[Line] = []
    for text in dict.fromkeys(said):
        lines += _labelled("Note: ", text, style="yellow", width=width, most=2)
    return lines


def _not_run(document: Mapping[str, Any]) -> list[str]:
    """Return which plans a budget left out."""
    left = document["coverage"].get("not_run") or ()
    if not left:
        return []
    shown = "; ".join(left[:MOST_PLANS]) + (" ..." if len(left) > MOST_PLANS else "")
    of = document["coverage"].get("plans") or len(left)
    return [f"--budget ended before {len(left)} of {of} plans: {shown}"]


def _compressed(document: Mapping[str, Any]) -> list[str]:
    """Return how fast each notice was played, where it was not in real seconds."""
    scales: dict[str, list[float]] = {}
    for trial in document["trials"]:
        for attempt in trial["attempts"]:
            played = attempt.get("notice")
            if played and played["time_scale"] != 1:
                scales.setdefault(played["story"], []).append(played["time_scale"])
    said = []
    for story, found in scales.items():
        low, high = f"{min(found):.3g}", f"{max(found):.3g}"
        speed = low if low == high else f"{low} to {high}"
        said.append(
            f"the notice {story} was played at {speed} cloud seconds a second, so that"
            " its deadline fell into the run (--time-scale 1 plays it in real time)"
        )
    return said


def _faults(document: Mapping[str, Any]) -> list[str]:
    """Return of each fault how often it struck, and what it struck first."""
    counts: dict[str, int] = {}
    paths: dict[str, str] = {}
    for trial in document["trials"]:
        for attempt in trial["attempts"]:
            for fault in attempt.get("faults", ()):
                if fault["struck"]:
                    name = fault["fault"]
                    counts[name] = counts.get(name, 0) + fault["struck"]
                    paths.setdefault(name, fault.get("path") or "")
    return [
        f"the fault {name} struck {'once' if count == 1 else f'{count} times'}"
        + (f", first {paths[name]!r}" if paths[name] else "")
        for name, count in counts.items()
    ]


def _note_text(document: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    trials = entry["trials"]
    if entry["name"] == "smallest-grace" and document.get("grace"):
        return _smallest_grace(document["grace"])
    message = entry.get("message") or next(
        (
            note["message"]
            for trial in document["trials"]
            for note in trial.get("notes", ())
            if note["name"] == entry["name"]
        ),
        entry["name"],
    )
    return f"{message} ({trials_text(trials)})" if trials else str(message)


def trials_text(trials: list[int]) -> str:
    """Return "trial 3", or "trials 1, 2, 5" with the middle left out when it is long."""
    if len(trials) == 1:
        return f"trial {trials[0]}"
    shown = [str(n) for n in trials]
    if len(shown) > 8:
        shown = [*shown[:6], "...", shown[-1]]
    return f"trials {', '.join(shown)}"


def _replay_line(
    document: Mapping[str, Any], findings: list[dict[str, Any]]
) -> str | None:
    """Return the command that carries out the first finding's trial again, whole."""
    number = findings[0]["trial"] if findings else 0
    for trial in document["trials"]:
        if trial["number"] == number and trial.get("replay"):
            return replay_line(document, trial)
    return None


def _wrapped(
    text: str, *, indent: int, width: int, most: int | None = None, style: str = ""
) -> list[Line]:
    pad = " " * indent
    wrapped = textwrap.wrap(
        text,
        width=width,
        initial_indent=pad,
        subsequent_indent=pad,
        max_lines=most,
        placeholder=" ...",
    )
    return [[(line, style)] for line in wrapped]


def _labelled(
    label: str, text: str, *, style: str, width: int, most: int = 4
) -> list[Line]:
    lines = _wrapped(label + text, indent=2, width=width, most=most)
    first = lines[0][0][0]
    lines[0] = [(f"  {label}", style), (first[2 + len(label) :], "")]
    return lines


def _smallest_grace(found: Mapping[str, Any]) -> str:
    given = f"{found['given_s']:g} s"
    if found["smallest_s"] is None:
        return f"not every plan holds in the whole grace window of {given}"
    fails = found["fails_s"]
    less = "" if fails is None else f", and not in {fails:.3g} s"
    held = f"{found['smallest_s']:.3g} s"
    return f"every plan held in a grace window of {held}{less}; {given} are given"
