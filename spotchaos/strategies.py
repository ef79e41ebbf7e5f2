"""Hypothesis strategies over the same nouns as the command.

A failing example shrinks to the simplest plan: one interruption, as early as possible,
at a step's end, without a notice. `str(plan)` is what `--kill-at` takes.
"""

from __future__ import annotations

from hypothesis import strategies as st

from spotchaos.config.plan import KillPoint, Plan
from spotchaos.errors import UsageError

# Sites of a step, simplest first: sampled_from shrinks towards the first.
STEP_SITES = ("step-end", "optimizer-step", "backward", "forward")


def kill_points(
    *, max_step: int, sites: tuple[str, ...] = STEP_SITES, ranks: int | None = None
) -> st.SearchStrategy[KillPoint]:
    """Return kill points at occurrences 1 to `max_step` of the given sites.

    Args:
        max_step: the last step at which an attempt may be interrupted, from 1 up.
        sites: in the order in which a failure should prefer them.
        ranks: also draw single ranks below this number; None means every rank.
    """
    rank = st.none() if ranks is None else st.none() | st.integers(0, ranks - 1)
    return st.builds(
        KillPoint,
        site=st.sampled_from(sites),
        occurrence=st.integers(1, max_step),
        rank=rank,
    )


@st.composite
def plans(
    draw: st.DrawFn,
    *,
    max_step: int,
    max_interruptions: int = 3,
    sites: tuple[str, ...] = STEP_SITES,
) -> Plan:
    """Return plans of one to `max_interruptions` interruptions.

    Wherever an attempt resumes, it comes to its kill point: together they ask for no
    more steps than the run has. They are marked as drawn all the same.

    Args:
        draw: given by Hypothesis.
        max_step: the steps of an uninterrupted run, from 1 up.
        max_interruptions: at most so many attempts are interrupted.
        sites: of steps, in the order in which a failure should prefer them.
    """
    # The count is drawn first: what is shorter to draw counts as simpler, and a plan that
    # leaves no steps for another interruption would be.
    more = draw(st.integers(0, max_interruptions - 1))
    points = [draw(kill_points(max_step=max_step, sites=sites))]
    left = max_step - points[0].occurrence
    for _ in range(more):
        if left < 1:
            break
        points.append(draw(kill_points(max_step=left, sites=sites)))
        left -= points[-1].occurrence
    return Plan(tuple(points), drawn=True)


def notices() -> st.SearchStrategy[str | None]:
    """Return stories of notices, as `--notice` takes them; none at all first.

    Those of providers that document no grace window are left out: `--grace` names one.
    """
    from spotchaos.providers.stories import stories, story  # only where it is drawn

    def has_grace(name: str) -> bool:
        try:
            return bool(story(name).acts)
        except UsageError:
            return False

    return st.none() | st.sampled_from([n for n in stories() if has_grace(n)])


def faults(*, of_stores: bool = False) -> st.SearchStrategy[str]:
    """Return faults without a kill, on the first to the third operation they strike.

    Args:
        of_stores: also draw what an object store does, for programs that use one.
    """
    from spotchaos.injectors.disks import DISK_FAULTS  # only where it is drawn
    from spotchaos.injectors.file_times import TIMES
    from spotchaos.injectors.storage_faults import STORAGE_FAULTS

    names = [*DISK_FAULTS, *(STORAGE_FAULTS if of_stores else ())]
    return st.builds(
        lambda name, count: name if name in TIMES else f"{name}:{count}",
        st.sampled_from(names),
        st.integers(1, 3),
    )
