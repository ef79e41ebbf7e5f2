"""The environment variables of an attempt: the user's own, pinned and without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from spotchaos.launch.isolation.credentials import OFFLINE, without_secrets
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.isolation.proxies import past_proxies
from spotchaos.trace.format import ORDERS_VARIABLE

BOOT = Path(__file__).parents[2] / "probe" / "boot"
# One count for all phases: 1 and 2 threads give other bits (facts.md 5).
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
HASH_SEED = "0"
# By which programs tell one job, and so one machine, from another.
JOB_VARIABLES = (
    "JOB_ID",
    "LSB_JOBID",
    "PBS_JOBID",
    "SLURM_JOBID",
    "SLURM_JOB_ID",
    "TORCHELASTIC_RUN_ID",
)


def environment_of(
    program: Program,
    *,
    orders: Path,
    temporary: Path,
    generation: int,
    host_name: str,
    offline: bool,
    extra: Mapping[str, str],
) -> dict[str, str]:
    """Return the whole environment of an attempt.

    Args:
        program: its own variables come first, but for what gives access to accounts.
        orders: the file of the attempt's orders.
        temporary: its TMPDIR.
        generation: of the machine, from 1; a new one has a new job id.
        host_name: of the machine.
        offline: the attempt has no network; libraries that would wait are told so.
        extra: variables of ours (addresses of fakes and their credentials), which win.
    """
    environment = without_secrets(program.environment, keep=program.keep_env)
    if offline:
        environment = {**OFFLINE, **environment}
    own_path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{BOOT}:{own_path}" if own_path else str(BOOT)
    environment.update(dict.fromkeys(THREAD_VARIABLES, str(program.threads)))
    environment["PYTHONHASHSEED"] = HASH_SEED
    environment[ORDERS_VARIABLE] = str(orders)
    for name in ("TMPDIR", "TEMP", "TMP"):
        environment[name] = str(temporary)
    if generation > 1:
        for name in JOB_VARIABLES:
            if name in environment:
                environment[name] = f"{environment[name]}{generation:03}"
        if "HOSTNAME" in environment:
            environment["HOSTNAME"] = host_name
    if extra:
        extra = {**extra, **past_proxies(environment, extra)}
    environment.update(extra)
    return environment
