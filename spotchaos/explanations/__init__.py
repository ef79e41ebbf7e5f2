"""The pages of `spotchaos explain`: one Markdown file for each finding and each note."""

from __future__ import annotations

from importlib import resources

from spotchaos.findings import FINDINGS, NOTES


def page(name: str) -> str:
    """Return the page of a finding or note, as Markdown.

    Raises:
        KeyError: no page has that name.
    """
    if name not in FINDINGS and name not in NOTES:
        raise KeyError(name)  # a stored report may name anything
    file = resources.files(__name__).joinpath(f"{name}.md")
    if not file.is_file():
        raise KeyError(name)
    return file.read_text(encoding="utf-8")
