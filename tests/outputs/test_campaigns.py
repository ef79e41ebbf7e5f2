"""Programs that train nothing are judged by what they leave, whatever they are made with."""

import sys
import textwrap

import pytest

from spotchaos.campaign.campaign import run
from spotchaos.config.options import BY_NAME, make_settings, read_option
from spotchaos.explore.exploration import explore
from spotchaos.model import Verdict

PYTHON = (sys.executable, "program.py")


@pytest.fixture
def tried(tmp_path, monkeypatch):
    """Carry out a campaign on a program; return its outcome."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def tried(source, *, command=PYTHON, carry_out=run, name="program.py", **options):
        folder = tmp_path / "work"
        folder.mkdir()
        (folder / name).write_text(textwrap.dedent(source))
        values = {}
        for option, value in options.items():
            known = BY_NAME[option.replace("_", "-")]
            values[known.name] = read_option(known, value)
        settings = make_settings(values, command=tuple(command), folder=folder)
        return carry_out(settings, lambda event: None)

    return tried


def names(outcome):
    return [name for name, _ in outcome.findings]


SHELL = """
    mkdir -p out
    for i in $(seq 1 20); do
      [ -e out/$i.txt ] && continue
      echo "$i $((i * i))" > {target}
      {publish}
    done
"""


def test_a_shell_script_is_judged_by_its_files(tried):
    source = SHELL.format(target="part.tmp", publish="mv part.tmp out/$i.txt")
    outcome = tried(
        source,
        command=("sh", "job.sh"),
        name="job.sh",
        kill_at=["record:11", "50%", "record:5,record:3"],
    )
    assert outcome.verdict is Verdict.HELD
    assert outcome.baseline.outputs.counted == "20 output files, 20 records"
    assert len(outcome.trials) == 3


def test_a_shell_script_that_takes_what_is_there_for_done_is_convicted(tried):
    source = SHELL.format(target="out/$i.txt", publish=":")
    outcome = tried(
        source, command=("sh", "job.sh"), name="job.sh", kill_at=["record:11/half"]
    )
    assert names(outcome) == ["outputs-torn"]


INFERENCE = """
    import os
    import torch
    from torch.utils.data import DataLoader, Subset, TensorDataset

    os.makedirs("out", exist_ok=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4).eval()
    data = TensorDataset(torch.randn(48, 8, generator=torch.Generator().manual_seed(1)))
    done = sum(name.endswith(".pt") for name in os.listdir("out"))
    rows = Subset(data, range(done * 4, 48))
    with torch.inference_mode():
        for number, (x,) in enumerate(DataLoader(rows, batch_size=4), done):
            torch.save(model(x), "out/part.tmp")
            os.replace("out/part.tmp", f"out/{number:03d}.pt")
"""


def test_inference_with_a_loader_is_no_training(tried):
    outcome = tried(INFERENCE, kill_at=["forward:7", "record:5"])
    assert outcome.verdict is Verdict.HELD
    assert not names(outcome)
    assert [a.ended for a in outcome.trials[0][0].attempts] == ["reclaimed", "finished"]


FLAWED_LINES = """
    import os, time
    done = 0
    if os.path.exists("out.jsonl"):
        done = open("out.jsonl").read().count("\\n")
    with open("out.jsonl", "a") as out:
        for i in range(done, 6):
            out.write('{"id": %d, "square": %d}\\n' % (i, i * i))
            out.flush()
"""


def test_every_state_that_a_crash_leaves_is_gone_on_from(tried):
    outcome = tried(FLAWED_LINES, carry_out=explore)
    assert outcome.verdict is Verdict.VIOLATED
    assert set(names(outcome)) == {"outputs-torn"}


def test_a_program_that_leaves_nothing_is_not_observed(tried):
    outcome = tried("print('done')", kill_at=["50%"])
    assert outcome.verdict is Verdict.UNKNOWN
    assert names(outcome) == ["not-observed"]


def test_a_glob_that_fits_nothing_is_not_observed(tried):
    outcome = tried(FLAWED_LINES, outputs=["*.csv"], kill_at=["50%"])
    assert names(outcome) == ["not-observed"]
    assert "*.csv" in outcome.trouble


DRAWN = """
    import json, random
    with open("out.jsonl", "w") as out:
        for i in range(4):
            out.write(json.dumps({"id": i, "score": random.random()}) + "\\n")
"""


def test_outputs_that_differ_between_two_runs_are_named_with_the_option_for_it(tried):
    outcome = tried(DRAWN, kill_at=["50%"])
    assert names(outcome) == ["not-repeatable"]
    assert "out.jsonl, id 0: score is" in outcome.trouble
    assert "--ignore-field score" in outcome.hint


def test_a_field_that_is_left_out_may_differ(tried):
    outcome = tried(DRAWN, ignore_field="score", kill_at=["0.05s"], trials=1)
    assert outcome.baseline.outputs.records == 4


def test_an_output_that_cannot_be_read_is_named(tried):
    source = """
        with open("out.npy", "wb") as out:
            out.write(b"\\x93NUMPY\\x01\\x00\\x76\\x00{")
    """
    outcome = tried(source, kill_at=["50%"])
    assert names(outcome) == ["not-observed"]
    assert "out.npy" in outcome.trouble


TRAINING = """
    import os, torch
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start = 0
    if os.path.exists("last.pt"):
        state = torch.load("last.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    out = open("metrics.jsonl", "a")
    for step in range(start, 12):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        loss = model(x).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        out.write('{"id": %d, "loss": %.6f}\\n' % (step, loss.item()))
        out.flush()
        if step % 4 == 3:
            state = {"model": model.state_dict(), "step": step + 1}
            torch.save({**state, "optimizer": optimizer.state_dict()}, "last.tmp")
            os.replace("last.tmp", "last.pt")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_outputs_of_a_training_are_judged_where_that_is_asked_for(tried):
    outcome = tried(TRAINING, outputs=["metrics.jsonl"], kill_at=["step-end:6"])
    assert names(outcome) == ["outputs-repeated"]


def test_who_works_on_after_a_signal_without_an_output_ignores_it(tried):
    source = """
        import os, signal, time
        signal.signal(signal.SIGTERM, lambda *_: None)
        for i in range(3):
            if not os.path.exists(f"o{i}.txt"):
                open(f"o{i}.tmp", "w").write(str(i))
                os.replace(f"o{i}.tmp", f"o{i}.txt")
        if not os.path.exists("end.txt"):
            end = time.monotonic() + 3
            while time.monotonic() < end:
                time.sleep(0.05)
            open("end.txt", "w").write("end")
    """
    outcome = tried(source, kill_at=["record:3/after"], signal="TERM", grace="1")
    assert names(outcome) == ["signal-ignored"]


def test_a_kill_point_beyond_the_last_record_is_refused(tried):
    from spotchaos.errors import UsageError

    with pytest.raises(UsageError, match="beyond the end"):
        tried(FLAWED_LINES, kill_at=["record:99"])
