"""The scoreboard of frameworks says what the reports say, and names what it left out."""

import importlib.util
from pathlib import Path

FILE = Path(__file__).parents[2] / "scenarios" / "matrix" / "scoreboard.py"
SPEC = importlib.util.spec_from_file_location("scoreboard", FILE)
scoreboard = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(scoreboard)


def test_every_program_of_a_row_is_there():
    for name, row in scoreboard.rows().items():
        if "program" in row:
            file = FILE.parent / row["program"]
            assert file.is_file(), name
            assert file.name in row["command"], name
        else:
            assert row["absent"], name


def test_every_program_on_a_framework_is_a_row():
    packages = {row["package"] for row in scoreboard.rows().values()}
    assert {"transformers", "lightning", "accelerate", "torch"} <= packages


def test_a_row_shows_the_promise_and_the_finding_with_its_token():
    row = {
        "package": "torch",
        "version": "2.13.0",
        "how": ["run"],
        "verdict": "violated",
        "holds_up_to": "state",
        "findings": [{"name": "order-changed", "replay": "sc1:abc"}],
    }
    text = scoreboard.as_markdown({"loop": row})
    assert (
        "| loop | torch 2.13.0 | `run` | violated | state | `order-changed` |" in text
    )
    assert "- loop, `order-changed`: `sc1:abc`" in text


def test_a_row_that_was_not_tried_says_why():
    row = {"package": "timm", "version": None, "absent": "it needs torchvision"}
    text = scoreboard.as_markdown({"timm": row})
    assert "| timm | timm | | not tried | | it needs torchvision |" in text
