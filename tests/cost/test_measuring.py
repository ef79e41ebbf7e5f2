"""What is measured on attempts: steps, saves, starts, lost steps, notices."""

from dataclasses import replace

import pytest

from spotchaos.campaign.measuring import Resumed, timing_of
from spotchaos.model import Attempt, AttemptTrace, Ended, RankTrace, SaveMark, StepMark
from spotchaos.trace.timing import Measured, Timing

STEP_S, STALL_S, START_S = 0.5, 2.0, 7.0


def an_attempt(
    *, steps=12, every=4, start_s=START_S, path="cold", beside=False, own=0.0
):
    """Return an attempt that saves after every few steps, `own` of it by the probe."""
    at, marks, saves = 100.0 + start_s, [], []
    for step in range(1, steps + 1):
        at += STEP_S
        marks.append(StepMark(step=step, components={}, t_s=at))
        if step % every == 0:
            stall_s = 0.1 if beside else STALL_S
            # It is seen to be over when training goes on.
            end_s = at + own + STALL_S + (0.0 if beside else 0.2)
            took_s = end_s - at - own
            saves.append(
                SaveMark(
                    len(saves) + 1,
                    step,
                    ("last.pt",),
                    None,
                    at,
                    end_s,
                    is_beside=beside,
                    took_s=took_s,
                )
            )
            at += stall_s + own
    rank = RankTrace(
        rank=0,
        states={},
        finish=None,
        steps=tuple(marks),
        saves=tuple(saves),
        loads=(),
        counts={"step-end": steps},
    )
    return Attempt(
        number=1,
        command=("python",),
        ended=Ended.FINISHED,
        exit_code=0,
        trace=AttemptTrace({0: rank}, 1, 1, torch_seen=True),
        wall_s=at - 100.0,
        started_at_s=100.0,
        path=path,
    )


def of(**given):
    whole = an_attempt(**given)
    return timing_of(whole, starts=[whole], resumed=[])


@pytest.mark.parametrize("own", [0.0, 1.5])
def test_steps_and_saves_are_measured_without_what_the_probe_does(own):
    found = of(own=own)
    assert found.step_s.median == pytest.approx(STEP_S)
    assert found.step_s.n == 9  # of eleven from one to the next, two held a save
    assert found.save_stall_s.median == pytest.approx(STALL_S)
    assert found.save_end_s.median == pytest.approx(STALL_S)
    assert found.save_every == Measured(4.0, 4.0, 4.0, 2)
    assert found.cold_start_s.median == pytest.approx(START_S)


def test_a_save_in_the_background_ends_later_than_it_stalls():
    found = of(beside=True, steps=40, every=10)
    assert found.save_stall_s.p10 == pytest.approx(0.1)
    assert found.save_end_s.median == pytest.approx(STALL_S)


def test_a_resumed_start_is_that_of_fresh_processes():
    whole = an_attempt()
    resumed = [
        Resumed(an_attempt(start_s=9.0), 17),
        Resumed(an_attempt(start_s=9.0), 3),
    ]
    found = timing_of(whole, starts=[whole], resumed=resumed)
    assert found.resumed_start_s.median == pytest.approx(9.0)
    assert found.lost_steps == Measured.of([17, 3])


def test_what_a_forked_start_has_spared_is_added():
    whole, forked = an_attempt(), an_attempt(start_s=1.0, path="warm")
    resumed = [Resumed(an_attempt(start_s=1.5, path="warm"), 0)]
    found = timing_of(forked, starts=[whole, forked], resumed=resumed)
    assert found.cold_start_s.median == pytest.approx(START_S)
    assert found.resumed_start_s.median == pytest.approx(1.5 + START_S - 1.0)
    # Without a fresh start nobody knows what was spared.
    assert timing_of(forked, starts=[forked], resumed=resumed).resumed_start_s is None


def test_a_program_that_was_not_seen_measures_nothing():
    unseen = replace(an_attempt(), trace=AttemptTrace({}, 0, 0, torch_seen=False))
    assert timing_of(unseen, starts=[unseen], resumed=[]) == Timing()


def test_a_section_that_was_written_is_read_back():
    timing = of()
    assert Timing.from_report(timing.as_report()).as_report() == timing.as_report()
    assert Timing.from_report(Timing().as_report()) == Timing()


@pytest.mark.parametrize(
    "entry",
    [
        {"median": float("nan"), "p10": 0, "p90": 1, "n": 3},
        {"median": -1, "p10": 0, "p90": 1, "n": 3},
        {"median": 1, "p10": 0, "p90": 1, "n": 0},
        {"median": 1, "p10": 0, "n": 3},
        [1, 0, 1, 3],
    ],
)
def test_an_entry_that_makes_no_sense_is_not_measured(entry):
    assert Timing.from_report({"step_s": entry}) == Timing()
