"""Whatever the plan: killed and resumed, every component has the bits of a quiet run."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from spotchaos.training.plain import first_difference

pytestmark = pytest.mark.ddp


@st.composite
def plans(draw):
    steps = draw(st.integers(3, 14))
    return {
        "ranks": draw(st.sampled_from([1, 2, 3])),
        "stops": draw(
            st.lists(
                st.tuples(st.sampled_from(["kill", "signal"]), st.integers(1, steps)),
                min_size=1, max_size=3,
            )
        ),
        "options": {
            "steps": steps,
            "save_every": draw(st.integers(1, 5)),
            "accumulate": draw(st.integers(1, 3)),
            "loader_workers": draw(st.sampled_from([0, 0, 0, 1, 2])),
            "precision": draw(st.sampled_from(["fp32", "bf16", "fp16"])),
            "average": draw(st.sampled_from([0.0, 0.9])),
        },
    }  # fmt: skip


def carried_out(toy, out, plan):
    """Play the plan and return the last attempt's answers."""
    for how, step in plan["stops"]:
        toy(out, ranks=plan["ranks"], **{f"{how}_at": step}, **plan["options"])
    codes, answers = toy(out, ranks=plan["ranks"], **plan["options"])
    assert codes == [0] * plan["ranks"]
    assert all(answers)


@given(plan=plans())
@example(
    plan={
        "ranks": 3,
        "stops": [("kill", 4), ("kill", 7)],
        "options": {"steps": 9, "save_every": 3, "accumulate": 2},
    }
)
@settings(max_examples=12)
def test_resumed_equals_uninterrupted_in_every_component(toy, final, plan):
    with tempfile.TemporaryDirectory() as folder:
        quiet, hurt = Path(folder, "quiet"), Path(folder, "hurt")
        carried_out(toy, quiet, {**plan, "stops": []})
        carried_out(toy, hurt, plan)
        assert first_difference(final(quiet), final(hurt), "state") is None


def test_without_settled_buckets_three_ranks_would_differ(
    toy, final, tmp_path, monkeypatch
):
    # The teeth of the test above: take the cure away, and it must fail.
    monkeypatch.setattr(
        "spotchaos.training.trainer.settle_buckets", lambda ddp, loss: None
    )
    options = {"steps": 9, "save_every": 3, "accumulate": 1}
    toy(tmp_path / "quiet", ranks=3, **options)
    toy(tmp_path / "hurt", ranks=3, kill_at=4, **options)
    toy(tmp_path / "hurt", ranks=3, **options)
    quiet, hurt = final(tmp_path / "quiet"), final(tmp_path / "hurt")
    assert first_difference(quiet, hurt, "state") is not None


@pytest.mark.parametrize(
    "where", ["model", "optimizers", "scheduler", "sampler", "rng"]
)
def test_each_component_matters(toy, final, tmp_path, monkeypatch, where):
    # The same, for the comparison: a component that is not restored must be seen.
    from spotchaos.training import trainer
    from spotchaos.training.state import TrainingState

    restore = TrainingState.restore

    def forgetful(self, state, **more):
        fresh = self.capture(state["ranks"])
        if where == "rng":
            fresh = {**fresh, "ranks": [self.mine()]}
        kept = {"scheduler": "schedulers", "rng": "ranks"}.get(where, where)
        restore(self, {**state, kept: fresh[kept]}, **more)

    monkeypatch.setattr(trainer.TrainingState, "restore", forgetful)
    options = {"steps": 9, "save_every": 3}
    toy(tmp_path / "quiet", **options)
    toy(tmp_path / "hurt", kill_at=4, **options)
    toy(tmp_path / "hurt", **options)
    quiet, hurt = final(tmp_path / "quiet"), final(tmp_path / "hurt")
    assert first_difference(quiet, hurt, "state") is not None
