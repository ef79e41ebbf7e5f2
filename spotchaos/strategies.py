"""Hypothesis strategies over the same nouns as the command.

A failing example shrinks to the simplest plan: one interruption, as early as possible,
at a step's end, without a notice. `str(plan)` is what `--kill-at` takes.
"""

from __future__ import annotations

from hypothesis import strategies as st

from spotchaos.plan import KillPoint, Plan

# Sites of a step, simplest first: sampled_from shrinks towards the first.
STEP_SITES = ("step-end", "optimizer-step", "backward", "forward")
SAVE_SITES = ("save-end", "save-begin", "load-begin", "load-end")


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


def plans(
    *,
    max_step: int,
    max_interruptions: int = 3,
    sites: tuple[str, ...] = STEP_SITES,
) -> st.SearchStrategy[Plan]:
    """Return plans of one to `max_interruptions` interruptions.

    They are marked as drawn: a later kill point that is not reached drops off.
    """
    first = kill_points(max_step=max_step, sites=sites)
    later = kill_points(max_step=max(1, max_step // 2), sites=sites)
    return st.builds(
        lambda head, tail: Plan((head, *tail), drawn=True),
        first,
        st.lists(later, max_size=max_interruptions - 1),
    )


def notices() -> st.SearchStrategy[str | None]:
    """Return stories of notices, as `--notice` takes them; none at all first."""
    from spotchaos.providers.stories import stories  # only where it is drawn

    return st.none() | st.sampled_from(stories())


def faults(*, of_stores: bool = False) -> st.SearchStrategy[str]:
    """Return faults without a kill, on the first to the third operation they strike.

    Args:
        of_stores: also draw what an object store does, for programs that use one.
    """
    from spotchaos.injectors.disks import DISK_FAULTS  # only where it is drawn
    from spotchaos.injectors.storage_faults import STORAGE_FAULTS

    names = [*DISK_FAULTS, *(STORAGE_FAULTS if of_stores else ())]
    return st.builds(
        lambda name, count: f"{name}:{count}",
        st.sampled_from(names),
        st.integers(1, 3),
    )
