"""The pages of `spotchaos explain`: one Markdown file for each finding and each note."""

from __future__ import annotations

from importlib import resources


def page(name: str) -> str:
    """Return the page of a finding or note, as Markdown.

    Raises:
        KeyError: no page has that name.
    """
    if not name.replace("-", "").isalnum():
        raise KeyError(name)
    file = resources.files(__name__).joinpath(f"{name}.md")
    if not file.is_file():
        raise KeyError(name)
    return file.read_text(encoding="utf-8")
