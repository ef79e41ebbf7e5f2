"""Trace files as processes leave them, for tests that read them."""

from __future__ import annotations

from spotchaos.trace.format import encode


def make_marks(*, steps=3, rank=None, bye=True, pid=10, start_s=1.0, save_at=2):
    """Return the marks of a process that takes `steps` steps."""
    marks = [
        {
            "k": "hello",
            "t": start_s,
            "pid": pid,
            "rank": rank,
            "world_size": 1,
            "role": "main",
        },
        {"k": "torch", "t": start_s, "version": "2.13.0", "algorithm": "xxh3_128"},
        {"k": "load", "t": start_s, "path": "last.pt", "via": "torch.load", "n": 1},
        {"k": "read", "t": start_s, "path": "last.pt"},
    ]
    for step in range(1, steps + 1):
        marks += [
            {
                "k": "state",
                "t": start_s + step,
                "step": step - 1,
                "at": "step",
                "c": {"weights": f"w{step - 1}"},
                "rng": {"rng.torch": ["b", "c", step]},
                "dtypes": {"weights": "float32"},
                "epoch": 0,
            },
            {
                "k": "step",
                "t": start_s + step + 0.1,
                "step": step,
                "c": {"batch": f"batch{step}", "loss": f"l{step}"},
                "loss": 0.5,
                "samples": [step, step + 1],
                "ids": "index",
                "micro": 2,
                "epoch": (step - 1) // 2,
            },
        ]
        if step == save_at:
            marks += make_save(1, step, start_s + step + 0.2, ["a.pt"])
    if bye:
        marks.append(
            {
                "k": "bye",
                "t": start_s + steps + 1,
                "counts": {"step-end": steps, "save-begin": 1},
                "steps": steps,
                "exception": None,
                "counted": {"optimizer": steps},
            }
        )
    return marks


def make_save(number, step, t_s, paths):
    return [
        {"k": "save", "t": t_s, "n": number, "writer": "torch.save"},
        {
            "k": "state",
            "t": t_s,
            "step": step,
            "at": "save",
            "c": {"weights": f"w{step}"},
        },
        {"k": "saved", "t": t_s + 0.01, "n": number, "paths": paths, "seconds": 0.01},
    ]


def write(folder, marks, *, name="10-aa", tail=b""):
    content = b"".join(encode(mark) for mark in marks)
    (folder / f"{name}.trace").write_bytes(content + tail)
