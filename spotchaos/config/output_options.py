"""The options by which outputs are judged, as rows of the table of options."""

from __future__ import annotations

from typing import Any

from spotchaos.config.spellings import names, tolerance

OF_OUTPUTS: tuple[dict[str, Any], ...] = (
    {
        "name": "outputs",
        "metavar": "GLOB",
        "many": True,
        "help": "judge these files as well, by their records (default: all but logs,"
        " where nothing is trained)",
    },
    {
        "name": "ignore-field",
        "metavar": "NAMES",
        "parse": names,
        "help": "fields of records that are not compared, joined by commas",
    },
    {
        "name": "key",
        "metavar": "NAME",
        "help": "the field that tells records apart (default: id, key, index, ... if"
        " it does)",
    },
    {
        "name": "tolerance",
        "metavar": "ABS[,REL]",
        "parse": tolerance,
        "help": "by how much floats may differ (default: not at all)",
    },
    {
        "name": "unordered",
        "metavar": None,
        "help": "lines may come in any order",
    },
    {
        "name": "max-lost-work",
        "metavar": "N",
        "parse": int,
        "help": "records that may be written again after interruptions (default: no"
        " bound)",
    },
)
