"""Writes the pages of `docs/reference` from the tables of the code.

`python docs/generate_reference.py` writes them; a test fails while they are behind.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from spotchaos.config.options import OPTIONS
from spotchaos.config.settings import NOT_YET
from spotchaos.explanations import page
from spotchaos.findings import FINDINGS, NOTES, UNKNOWN, breaks
from spotchaos.injectors.disks import DISK_FAULTS
from spotchaos.injectors.storage_faults import STORAGE_FAULTS
from spotchaos.providers.profiles import profile
from spotchaos.providers.stories import SERVICE_VARIANTS, STEMS, VARIANTS
from spotchaos.trace.format import FILE_SITES, PROBE_SITES, SITES, STORE_SITES

HERE = Path(__file__).parent / "reference"
LAYERS = Path(__file__).parents[1] / "tests" / "unit" / "layers.toml"
HEAD = "<!-- Written by docs/generate_reference.py; changes here are lost. -->\n\n"

# What a reader wants to know of a site; `generate` fails for one that is not here.
SITE_MEANINGS = {
    "start": "the program's first line is about to run",
    "fetch": "a batch is about to be taken from a loader",
    "forward": "a training forward is about to begin, or any where nothing is trained",
    "backward": "a backward is about to begin",
    "optimizer-step": "an optimizer step is about to begin",
    "step-end": "a step is complete",
    "epoch-end": "the loader has no more batches",
    "evaluation": "a module was put into evaluation",
    "save-begin": "the first write of a save is about to happen",
    "save-end": "the save is complete",
    "load-begin": "a checkpoint is about to be loaded",
    "load-end": "a checkpoint was loaded",
    "file-op": "any file operation below the working folder",
    "write": "a write; `/half` lets half of it through, `+4096` so many bytes",
    "rename": "a rename",
    "unlink": "a file is deleted",
    "fsync": "a file or folder is synced",
    "record": "a write to an output file, or a rename to the name of one, where outputs are judged",
    "upload-part": "an object or a part of one is about to be put into the object store, or an upload in parts to be completed; counted over all ranks",
    "finish": "the program has trained to its end",
}

# The same of the disk's faults; those of stores have their sentence in the code.
DISK_MEANINGS = {
    "enospc": "no space is left on the device",
    "edquot": "the quota is used up",
    "eio": "the device answers with an error",
    "erofs": "the filesystem has turned read-only",
    "eintr": "a system call is interrupted by a signal",
    "short-write": "a write takes only a part of the bytes",
    "rename-refused": "a rename is refused",
    "link-refused": "a hard link is refused",
    "chmod-refused": "a change of a file's mode is refused",
    "fsync-fails": "a sync fails with an error of the device",
    "slow-disk": "operations take long",
    "bit-flip": "one bit of a finished checkpoint is turned over",
    "zero-page": "one page of a finished checkpoint is zeros",
    "clock-skew": "the files of the lost machine carry times that lie ahead",
    "equal-times": "the files of the lost machine all carry one and the same time",
    "lost-times": "the files of the lost machine carry the times of a copy, which began with the newest",
}

GROUPS = {
    "resume": "Resume",
    "state": "State",
    "data": "Data",
    "divergence": "Divergence",
    "durability": "Durability",
    "interruption": "Interruption",
    "ranks": "Ranks",
    "storage": "Storage",
    "outputs": "Outputs",
    "tool": "The tool could not tell",
}


def options() -> str:
    """Return the page of options, by heading."""
    lines = [
        "# Options",
        "",
        (
            "Every option can stand in `spotchaos.toml`, or in `[tool.spotchaos]` of"
            " `pyproject.toml`, under its name without the dashes. The command line wins."
        ),
        "",
    ]
    for heading in dict.fromkeys(option.heading for option in OPTIONS):
        lines += [f"## {heading}", "", "| option | of | what |", "| --- | --- | --- |"]
        for option in OPTIONS:
            if option.heading != heading:
                continue
            value = f" {option.metavar}" if option.metavar else ""
            later = " (not in this release)" if option.name in NOT_YET else ""
            several = "; may be given several times" if option.many else ""
            of = ", ".join(option.commands)
            lines.append(
                f"| `--{option.name}{_cell(value)}` | {of} |"
                f" {_cell(option.help)}{several}{later} |"
            )
        lines.append("")
    lines += [
        "## Known findings",
        "",
        (
            "`[[known]]` in `spotchaos.toml`, or `[[tool.spotchaos.known]]` in"
            " `pyproject.toml`, with the keys `finding`, `reason` and `until`; see"
            " [a gate in CI](../howto/ci.md)."
        ),
    ]
    return "\n".join(lines) + "\n"


def sites() -> str:
    """Return the page of sites and of the spelling of plans."""
    lines = [
        "# Sites",
        "",
        (
            "A kill point is a site and which time it is reached, counted from 1 in each"
            " attempt and on each rank."
        ),
        "",
        "| `--kill-at` | meaning |",
        "| --- | --- |",
        "| `random` | plans drawn from the seed, biased to edges |",
        "| `edges` | each edge once: step 1, around saves, an epoch's end, the end |",
        "| `every-step`, `every-file-op` | all of them |",
        "| `SITE:N` | the Nth time the site is reached |",
        "| `SITE:N@R` | the same on rank R only |",
        "| `SITE:N/after` | (file sites) right after it |",
        "| `write:N/half` | half of the Nth write goes through |",
        "| `50%` | at that share of the baseline's steps |",
        "| `12.5s` | after that time |",
        "| `A,B` | A in the first attempt, B in the second |",
        "",
        "| site | reached when | seen by |",
        "| --- | --- | --- |",
    ]
    seen_by = dict.fromkeys(PROBE_SITES, "probe")
    seen_by |= dict.fromkeys(FILE_SITES, "supervisor of file operations")
    seen_by |= dict.fromkeys(STORE_SITES, "object store")
    lines += [f"| `{s}` | {SITE_MEANINGS[s]} | {seen_by[s]} |" for s in SITES]
    return "\n".join(lines) + "\n"


def findings() -> str:
    """Return the page of findings: a table, then the page of each."""
    lines = [
        "# Findings",
        "",
        "A name is stable for ever. `spotchaos explain NAME` shows the same text.",
        "",
        "| finding | breaks | what |",
        "| --- | --- | --- |",
    ]
    for kind in FINDINGS.values():
        breaks_what = "unknown" if kind.name in UNKNOWN else breaks(kind.name)
        lines.append(
            f"| [`{kind.name}`](#{kind.name}) | {breaks_what} | {_cell(kind.summary)} |"
        )
    lines += ["", "Notes break no promise:", "", "| note | what |", "| --- | --- |"]
    lines += [f"| [`{n}`](#{n}) | {_cell(text)} |" for n, text in NOTES.items()]
    for group, heading in GROUPS.items():
        lines += ["", f"## {heading}"]
        for kind in FINDINGS.values():
            if kind.group == group:
                lines += ["", _demoted(page(kind.name))]
    lines += ["", "## Notes"]
    for name in NOTES:
        lines += ["", _demoted(page(name))]
    return "\n".join(lines).rstrip() + "\n"


def notices() -> str:
    """Return the page of notices, and of the variants that each can have."""
    lines = [
        "# Notices",
        "",
        (
            "`--notice NAME` plays it to the program and reclaims the machine when the"
            " window ends; `spotchaos imds --provider NAME` plays it alone. Where the"
            " provider documents no window, give one: `--grace 60`."
        ),
        "",
        "| notice | grace | what |",
        "| --- | --- | --- |",
    ]
    for name, stem in STEMS.items():
        own = profile(stem.provider).says
        grace = own if stem.grace_s is None else f"{stem.grace_s:g} s"
        lines.append(f"| `{name}` | {grace} | {_cell(stem.summary)} |")
    variants = ", ".join(f"`-{name}`" for name in (*VARIANTS, *SERVICE_VARIANTS))
    lines += ["", f"Most can be varied by an ending, as in `aws-early`: {variants}."]
    return "\n".join(lines) + "\n"


def faults() -> str:
    """Return the page of faults without a kill."""
    lines = [
        "# Faults",
        "",
        (
            "`--fault NAME` strikes the first operation that it can strike, `NAME:3` the"
            " third, `NAME:3+` from the third on, `NAME:last` only in the last save."
            " Those of stores work with `spotchaos s3 --fault` too."
        ),
        "",
        "| fault | what |",
        "| --- | --- |",
    ]
    lines += [f"| `{name}` | {DISK_MEANINGS[name]} |" for name in DISK_FAULTS]
    lines += [f"| `{name}` | {_cell(text)} |" for name, text in STORAGE_FAULTS.items()]
    return "\n".join(lines) + "\n"


def report() -> str:
    """Return the page of the report's keys, from its schema."""
    text = resources.files("spotchaos.report").joinpath("schema1.json").read_text()
    schema = json.loads(text)
    lines = [
        "# Report",
        "",
        (
            "`--json FILE` writes schema 1. Keys that are not here may be added; readers"
            " leave them alone. The schema itself lies in the package:"
            " `spotchaos/report/schema1.json`."
        ),
    ]
    lines += _table("The report", schema)
    for name in ("trial", "attempt", "finding", "known"):
        lines += _table(f"Each {name}", schema["$defs"][name])
    return "\n".join(lines) + "\n"


def layers() -> str:
    """Return the page of layers: a picture, and who may import whom."""
    table = tomllib.loads(LAYERS.read_text(encoding="utf-8"))
    lines = [
        "# Layers",
        "",
        (
            "Each layer may import what its row names, all of it further up in the table;"
            " `tests/unit/test_layers.py` holds it. The fronts (`cli`, `pytest_plugin`,"
            " `pytest_support`) may import everything but `training` and `specimens`."
        ),
        "",
        _picture_of(table),
        "",
        "| layer | what it is | may import |",
        "| --- | --- | --- |",
    ]
    for name, row in table.items():
        may = ", ".join(f"`{other}`" for other in row["may"]) or "nothing of ours"
        lines.append(f"| `{name}` | {row['for']} | {may} |")
    return "\n".join(lines) + "\n"


def _picture_of(table: dict[str, Any]) -> str:
    """Return the layers as rows of boxes: each stands above all that it may import."""
    depth: dict[str, int] = {}
    for name, row in table.items():
        depth[name] = 1 + max((depth[other] for other in row["may"]), default=-1)
    rows = [
        [n for n in table if depth[n] == d] for d in range(max(depth.values()), -1, -1)
    ]
    wide, high, gap = 130, 30, 8
    width = max(map(len, rows)) * (wide + gap)
    shapes = []
    for y, names in enumerate(rows):
        left = (width - len(names) * (wide + gap)) / 2
        for x, name in enumerate(names):
            at = (left + x * (wide + gap), y * (high + gap))
            shapes.append(
                f'<rect x="{at[0]:g}" y="{at[1]:g}" width="{wide}" height="{high}" rx="4"'
                ' fill="none" stroke="currentColor"/>'
                f'<text x="{at[0] + wide / 2:g}" y="{at[1] + 20:g}">{name}</text>'
            )
    return (
        f'<svg viewBox="-1 -1 {width + 2} {len(rows) * (high + gap)}" role="img"'
        ' aria-label="the layers of spotchaos, each above what it may import"'
        ' fill="currentColor" font-size="13" text-anchor="middle">'
        + "".join(shapes)
        + "</svg>"
    )


def _table(heading: str, schema: dict[str, Any]) -> list[str]:
    lines = ["", f"## {heading}", "", "| key | type | what |", "| --- | --- | --- |"]
    required = schema.get("required", [])
    for key, entry in schema["properties"].items():
        always = "" if key in required else " (not always there)"
        said = _cell(entry.get("description", ""))
        lines.append(f"| `{key}` | {_type(entry)} | {said}{always} |")
    return lines


def _type(entry: dict[str, Any]) -> str:
    if "$ref" in entry:
        return str(entry["$ref"].rpartition("/")[2])
    if "anyOf" in entry:
        return " or ".join(_type(one) for one in entry["anyOf"])
    if "enum" in entry:
        return ", ".join(f"`{value}`" for value in entry["enum"])
    if "const" in entry:
        return f"`{entry['const']}`"
    kind = entry.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _demoted(text: str) -> str:
    """Return a page as a section: its title two levels down, its sections in bold."""
    title, _, rest = text.strip().partition("\n")
    # A heading would need a name of its own on this long page.
    rest = re.sub(r"(?m)^## (.*)$", r"**\1**\n", rest)
    return f"##{title}\n{rest}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {
    "options.md": options,
    "sites.md": sites,
    "findings.md": findings,
    "notices.md": notices,
    "faults.md": faults,
    "report.md": report,
    "layers.md": layers,
}


def generate() -> dict[str, str]:
    """Return the text of every page by its file name."""
    return {name: HEAD + make() for name, make in PAGES.items()}


if __name__ == "__main__":
    for name, text in generate().items():
        HERE.joinpath(name).write_text(text, encoding="utf-8")
