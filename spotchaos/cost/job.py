"""What is trained, and how long each part of it takes on its machines."""

from __future__ import annotations

from dataclasses import dataclass

from spotchaos.cost.units import us


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training run, in steps and whole microseconds.

    Attributes:
        steps: how many are to be made.
        step_us: of one step on all nodes.
        save_stall_us: by which a save delays training.
        save_end_us: from the beginning of a save until it is whole; not less than the
            stall.
        cold_us: from a program's start to its first step, without a checkpoint.
        resume_us: the same with one.
        provision_us: paid time from getting a machine to the program's start (boot,
            image pull).
        queue_us: unpaid time from asking for a machine to getting it.
        notice_us: from a provider's notice to the reclaim; 0: there is none.
        need_us: from a notice until the save that it asks for is whole.
        nodes: how many machines it runs on.
        is_elastic: whether it goes on with fewer nodes; else all of them or none.
    """

    steps: int
    step_us: int
    save_stall_us: int = 0
    save_end_us: int = 0
    cold_us: int = 0
    resume_us: int = 0
    provision_us: int = 0
    queue_us: int = 0
    notice_us: int = 0
    need_us: int = 0
    nodes: int = 1
    is_elastic: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1 or self.step_us < 1 or self.nodes < 1:
            raise ValueError("a job has at least one step, microsecond and node")
        if self.save_end_us < self.save_stall_us:
            object.__setattr__(self, "save_end_us", self.save_stall_us)

    @classmethod
    def from_seconds(
        cls,
        *,
        steps: int,
        step_s: float,
        save_stall_s: float = 0.0,
        save_end_s: float | None = None,
        cold_s: float = 0.0,
        resume_s: float | None = None,
        provision_s: float = 0.0,
        queue_s: float = 0.0,
        notice_s: float = 0.0,
        need_s: float | None = None,
        nodes: int = 1,
        is_elastic: bool = False,
    ) -> Job:
        """Return a job from seconds.

        Args:
            steps: how many are to be made.
            step_s: of one step.
            save_stall_s: by which a save delays training.
            save_end_s: until a save is whole; None: as the stall.
            cold_s: from start to first step.
            resume_s: the same with a checkpoint; None: as without.
            provision_s: from getting a machine to the program's start; paid.
            queue_s: from asking for a machine to getting it; not paid.
            notice_s: from a notice to the reclaim.
            need_s: from a notice until its save is whole; None: a step and a save.
            nodes: machines.
            is_elastic: goes on with fewer.
        """
        end_s = max(save_stall_s, save_stall_s if save_end_s is None else save_end_s)
        return cls(
            steps=steps,
            step_us=max(1, us(step_s)),
            save_stall_us=us(save_stall_s),
            save_end_us=us(end_s),
            cold_us=us(cold_s),
            resume_us=us(cold_s if resume_s is None else resume_s),
            provision_us=us(provision_s),
            queue_us=us(queue_s),
            notice_us=us(notice_s),
            need_us=us(step_s + end_s if need_s is None else need_s),
            nodes=nodes,
            is_elastic=is_elastic,
        )

    @property
    def work_us(self) -> int:
        """Time of all steps, and nothing else, on all nodes."""
        return self.steps * self.step_us
