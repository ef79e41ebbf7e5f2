"""The tool convicts each flawed program by its name, and acquits each correct one."""

import pytest

from spotchaos.findings import FINDINGS
from spotchaos.pytest_support import SPECIMENS, specimen_runs as specimens
from spotchaos.pytest_support.shared_baselines import SharedBaselines
from spotchaos.pytest_support.specimen_runs import (
    read_table,
    try_program,
    unmet_by_mutant,
    unmet_by_twin,
)

TABLE = read_table()
# How training runs were lost, as people reported it, and the pair that shows each. Lines
# of a log that are lost or written twice have none: nothing judges what a program logs.
CAUSES = {
    "a file written over the one before it": "torn_checkpoint",
    "a folder of files without a commit": "folder_without_commit",
    "a pointer that moves before the data are there": "pointer_before_thread",
    "names sorted as text": "stale_resume",
    "the old one deleted before the new one is saved": "deleted_before_saved",
    "batches of a new permutation skipped": "new_permutation",
    "right after one resume, wrong after two": "right_once",
    "no random state": "rng_not_restored",
    "scheduler and optimizer restored in the wrong order": "order_of_restore",
    "a loss scaler forgotten": "scaler_not_restored",
    "an average that forgets its age": "average_forgets_age",
    "loader workers that die before the save": "workers_die_first",
    "one rank that leaves the others": "one_rank_leaves",
    "an upload committed although it was cut": "short_object",
    "a save within a signal's handler": "save_in_handler",
    "a thread that writes what training changes": "torn_snapshot",
    "an error that destroys the old checkpoint": "error_destroyed_checkpoint",
    "bytes that were never synced": "unsynced_checkpoint",
    "damage that is loaded without a word": "silent_damage",
    "a checkpoint of another run": "foreign_resume",
    "moments of an optimizer that are not saved": "optimizer_not_restored",
    "batch norm's statistics that are not saved": "buffers_not_restored",
    "a total that is counted again": "step_count_wrong",
    "a finished run that trains on": "retrained_after_finish",
    "a signal that nobody looks at": "signal_ignored",
    "a status that says done": "exit_code",
    "ranks that resume apart": "ranks_disagree",
    "an epoch split anew for another number of ranks": "recipe_resplit",
    "an upload that failed without a word": "upload_lost",
    "metadata asked without a token": "notice_ignored",
    "an error while loading that is swallowed": "silent_restart",
    "a lock left behind": "hang",
    "a save that a leftover blocks": "leftover_blocks_save",
}


# One of each group of judges, for every run of the tests; the rest are slow.
QUICK = {
    "no_checkpoint",
    "optimizer_not_restored",
    "rule_fetches_ahead",
    "rule_two_optimizers",
    "stale_resume",
    "vacuous",
}


def _params(rows):
    return [
        pytest.param(
            row, id=row.name, marks=[] if row.name in QUICK else [pytest.mark.slow]
        )
        for row in rows
    ]


@pytest.fixture(scope="module")
def shared_baselines():
    shared = SharedBaselines(ready=[SPECIMENS])
    yield shared
    shared.close()


@pytest.mark.parametrize("specimen", _params(s for s in TABLE.values() if s.finding))
def test_a_flawed_program_is_convicted_by_its_name(
    specimen, shared_baselines, tmp_path
):
    outcome = try_program(
        specimen, specimen.mutant, folder=tmp_path, layer=shared_baselines.layer
    )
    assert not unmet_by_mutant(specimen, outcome)


@pytest.mark.parametrize("specimen", _params(TABLE.values()))
def test_a_correct_program_is_acquitted(specimen, shared_baselines, tmp_path):
    outcome = try_program(
        specimen, specimen.mended, folder=tmp_path, layer=shared_baselines.layer
    )
    assert not unmet_by_twin(specimen, outcome)


def test_every_finding_has_a_specimen():
    shown = {specimen.finding for specimen in TABLE.values()}
    assert not [name for name in FINDINGS if name not in shown]


@pytest.mark.parametrize("cause", [pytest.param(c, id=c) for c in CAUSES])
def test_what_people_reported_has_a_pair(cause):
    assert TABLE[CAUSES[cause]].finding in FINDINGS


def test_every_specimen_is_in_the_table():
    mutants = {path.stem for path in (SPECIMENS / "mutants").glob("*.py")}
    mended = {path.stem for path in (SPECIMENS / "mended").glob("*.py")}
    assert mutants == {s.name for s in TABLE.values() if s.finding}
    assert mended == set(TABLE)


@pytest.mark.parametrize(
    "specimen", [pytest.param(s, id=s.name) for s in TABLE.values() if s.finding]
)
def test_a_mutant_opens_with_its_flaw_and_its_twin_differs_little(specimen):
    mutant, mended = specimen.mutant.read_text(), specimen.mended.read_text()
    assert mutant.startswith('"""One flaw: ')
    assert mended.startswith('"""No flaw: ')
    # Another language, so to speak; and what articles spread, against our core.
    if specimen.name != "not_observed" and not specimen.name.startswith("recipe_"):
        ours, theirs = set(mutant.splitlines()), set(mended.splitlines())
        assert len(ours ^ theirs) <= 26


def test_ctrl_c_ends_the_table_and_is_no_row_of_it(tmp_path, monkeypatch):
    specimen = TABLE["rng_not_restored"]

    class Interrupted:
        interrupted = True

    monkeypatch.setattr(specimens, "run", lambda *_, **__: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        try_program(specimen, specimen.mutant, folder=tmp_path)
