"""The judgement of one trial in a campaign: by the oracles, and by what counts."""

from __future__ import annotations

from dataclasses import replace

from spotchaos.campaign.baseline import BaselineContext
from spotchaos.config.plan import Plan
from spotchaos.config.settings import Settings
from spotchaos.model import Finding, Judgement, Trial, Verdict
from spotchaos.oracles import judge
from spotchaos.outputs.output_oracle import judge_outputs, with_outputs


def names_of(judgement: Judgement) -> set[str]:
    """Return the names of its findings."""
    return {finding.name for finding in judgement.findings}


def doubted(judgement: Judgement, message: str) -> Judgement:
    """Return a judgement that two ways of carrying out one plan do not agree on."""
    shown = ", ".join(sorted(names_of(judgement))) or "nothing"
    finding = Finding("not-repeatable", f"it showed {shown}; {message}")
    return replace(
        judgement, verdict=Verdict.UNKNOWN, findings=(finding,), holds_up_to=None
    )


def judge_trial(
    settings: Settings, baseline_context: BaselineContext, trial: Trial, plan: Plan
) -> Judgement:
    """Judge one trial; what the harness could not do makes it `unknown`."""
    for attempt in trial.attempts:
        if attempt.trouble is not None:
            return Judgement(
                Verdict.UNKNOWN,
                (Finding("not-reached", attempt.trouble, attempt=attempt.number),),
                (),
                (),
                None,
            )
    outputs = baseline_context.baseline.outputs
    if outputs is not None and outputs.is_alone:
        return judge_outputs(
            trial,
            baseline_context.baseline,
            settings,
            resume_after_finish=plan.after_finish,
        )
    judgement = judge(
        trial,
        baseline_context.baseline,
        promise=settings.promise,
        max_lost_steps=settings.max_lost_steps,
        accept_refusal=settings.accept_refusal,
        exit_codes=settings.exit_code,
        resume_after_finish=plan.after_finish,
        counts=settings.counts,
    )
    if outputs is not None:
        judgement = with_outputs(judgement, trial, outputs, settings)
    return judgement
