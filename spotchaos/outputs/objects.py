"""Outputs in an object store: which are there, how long, and what the small ones say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from spotchaos.model import OutputDifference, OutputsFound, Stored


def with_objects(found: OutputsFound, runs: Sequence[Stored | None]) -> OutputsFound:
    """Add the objects that uninterrupted runs leave alike."""
    stored = [run for run in runs if run is not None]
    if len(stored) < len(runs) or not stored:
        return found
    first, *others = stored
    objects = {
        path: size
        for path, size in first.objects.items()
        if all(run.objects.get(path) == size for run in others)
    }
    texts = {
        path: text
        for path, text in first.texts.items()
        if path in objects and all(run.texts.get(path) == text for run in others)
    }
    return replace(found, objects=objects, texts=texts)


def object_differences(
    found: OutputsFound, stored: Stored | None
) -> Iterator[OutputDifference]:
    """Yield how the objects of a run differ from those that every run leaves."""
    if stored is None:
        return
    missing = [path for path in found.objects if path not in stored.objects]
    if missing:
        yield OutputDifference("missing", len(missing), missing[0])
    for path, size in found.objects.items():
        there = stored.objects.get(path)
        text = found.texts.get(path)
        said = stored.texts.get(path, text)
        if there is None or (there == size and said == text):
            continue
        if there < size and (text is None or text.startswith(said or "")):
            detail = f"{there} of {size} bytes are there"
            yield OutputDifference("torn", 1, path, detail=detail)
        else:
            yield OutputDifference("differ", 1, path, detail="its content is another")
        return
