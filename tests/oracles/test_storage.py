"""Objects that are missing, old, short, or named too early; and programs that are right."""

from dataclasses import replace

import pytest
from flaws import Flaw
from synthetic import Program

from spotchaos.model import Ended, Injected, Request, Stored
from spotchaos.oracles import judge

BUCKET = "checkpoints/"
FAULT = "s3-403"


def put(step, at_s=0.0, *, key="step-{:03}.pt", **more):
    path = BUCKET + key.format(step)
    return Request(at_s, "PutObject", "write", path, 200, **more)


def refused(step, at_s=0.0, **more):
    return replace(put(step, at_s, **more), status=403, fault=FAULT)


def holding(*steps, requests=(), texts=(), sizes=None):
    names = [BUCKET + f"step-{step:03}.pt" for step in steps]
    objects = dict.fromkeys([*names, *dict(texts)], 100) | (sizes or {})
    return Stored(objects, dict(texts), tuple(requests) or tuple(map(put, steps)))


@pytest.fixture(scope="module")
def program():
    return Program(horizon=24, epoch_steps=8, save_every=4)


@pytest.fixture(scope="module")
def baseline(program):
    return stored_by(program.baseline(), holding(20, 24))


def stored_by(baseline, stored):
    """Return a baseline whose every run left this in its store."""
    return replace(
        baseline, runs=tuple(replace(run, stored=stored) for run in baseline.runs)
    )


def said_of(program, baseline, *stored, kill=13):
    trial = program.trial([kill])
    attempts = tuple(
        replace(attempt, stored=one)
        for attempt, one in zip(trial.attempts, stored, strict=True)
    )
    return judge(replace(trial, attempts=attempts), baseline).findings


def names(findings):
    return [finding.name for finding in findings]


def test_what_the_uninterrupted_run_stores_last_must_be_there(program, baseline):
    assert said_of(program, baseline, holding(8, 12), holding(20, 24)) == ()
    (finding,) = said_of(program, baseline, holding(8, 12), holding(16, 20))
    assert finding.name == "upload-lost"
    assert "'checkpoints/step-024.pt' is not in the store" in finding.message
    assert "newest there is 'checkpoints/step-020.pt'" in finding.message


def test_an_object_that_was_not_overwritten_is_older(program, baseline):
    stale = holding(20, 24, requests=[put(24, 1.0), refused(24, 2.0)])
    (finding,) = said_of(program, baseline, holding(12), stale)
    assert finding.name == "upload-lost"
    assert "older than what was written last" in finding.message
    again = holding(20, 24, requests=[refused(24, 1.0), put(24, 2.0)])
    assert said_of(program, baseline, holding(12), again) == ()


def test_what_an_earlier_machine_failed_to_store_is_made_up_for(program, baseline):
    first = holding(8, requests=[put(8), refused(12)])
    assert said_of(program, baseline, first, holding(20, 24)) == ()


def test_a_new_machine_may_use_a_name_of_its_own(program):
    own = "job-7/step-{:03}.pt"
    ours = Stored({BUCKET + own.format(24): 100}, {}, (put(24, key=own),))
    baseline = stored_by(program.baseline(), ours)
    theirs = "job-7002/step-{:03}.pt"
    moved = Stored({BUCKET + theirs.format(24): 100}, {}, (put(24, key=theirs),))
    assert said_of(program, baseline, holding(12), moved) == ()


def test_names_that_differ_from_run_to_run_are_not_missed(program, baseline):
    runs = baseline.runs
    other = holding(20, 24, sizes={BUCKET + "log-of-10:31.txt": 9})
    some = replace(baseline, runs=(replace(runs[0], stored=other), *runs[1:]))
    assert said_of(program, some, holding(12), holding(20, 24)) == ()


def part(number, status=200):
    path = BUCKET + "step-024.pt"
    fault = "" if status == 200 else FAULT
    return Request(0.0, "UploadPart", "write", path, status, part=number, fault=fault)


COMPLETE = Request(0.0, "Complete", "commit", BUCKET + "step-024.pt", 200)


def test_an_upload_completed_without_a_part_is_short(program, baseline):
    requests = [part("1"), part("2", 403), part("3"), COMPLETE]
    (finding,) = said_of(
        program, baseline, holding(12), holding(20, 24, requests=requests)
    )
    assert finding.name == "short-object"
    assert "without part 2" in finding.message


def test_a_part_that_was_sent_again_is_not_missing(program, baseline):
    requests = [part("1"), part("2", 403), part("2"), COMPLETE]
    kept = holding(20, 24, requests=requests)
    assert said_of(program, baseline, holding(12), kept) == ()


def test_a_checkpoint_of_half_its_usual_size_is_short(program):
    saved = program.baseline().first.trace.ranks[0].saves[-1].paths[0]
    last = BUCKET + saved.rpartition("/")[2]
    sizes = {last: 1000, BUCKET + "log.txt": 1000}
    baseline = stored_by(program.baseline(), Stored(sizes, {}, ()))
    cut = {last: 400, BUCKET + "log.txt": 10}
    (finding,) = said_of(program, baseline, holding(12), Stored(cut, {}, ()))
    assert finding.name == "short-object"
    assert "held 400 bytes, and 1000 after an uninterrupted run" in finding.message
    log = sizes | {BUCKET + "log.txt": 10}
    assert said_of(program, baseline, holding(12), Stored(log, {}, ())) == ()


LATEST = BUCKET + "latest"


@pytest.mark.parametrize("spelled", ["step-{:03}.pt", '{{"file": "step-{:03}.pt"}}'])
def test_a_pointer_to_what_was_never_stored_is_ahead(program, spelled):
    texts = {LATEST: spelled.format(24)}
    baseline = stored_by(program.baseline(), holding(20, 24, texts=texts))
    good = holding(20, 24, texts=texts)
    ahead = holding(8, texts={LATEST: spelled.format(12)})
    right = holding(8, texts={LATEST: spelled.format(8)})
    assert said_of(program, baseline, right, good) == ()
    (finding,) = said_of(program, baseline, ahead, good)
    assert finding.name == "pointer-ahead"
    assert "step-012.pt" in finding.message


def test_a_pointer_to_what_was_deleted_since_is_not_ahead(program):
    texts = {LATEST: "step-024.pt"}
    baseline = stored_by(program.baseline(), holding(20, 24, texts=texts))
    deleted = holding(4, requests=[put(8)], texts={LATEST: "step-008.pt"})
    assert (
        said_of(program, baseline, deleted, holding(20, 24, texts=texts), kill=9) == ()
    )


def test_a_pointer_to_half_a_folder_is_ahead(program):
    files = ["step-{:03}/model.pt", "step-{:03}/optimizer.pt"]

    def folder(step, count):
        made = [put(step, key=file) for file in files[:count]]
        objects = {request.path: 100 for request in made} | {LATEST: 8}
        return Stored(objects, {LATEST: f"step-{step:03}"}, tuple(made))

    baseline = stored_by(program.baseline(), folder(24, 2))
    assert said_of(program, baseline, folder(12, 2), folder(24, 2)) == ()
    (finding,) = said_of(program, baseline, folder(12, 1), folder(24, 2))
    assert finding.name == "pointer-ahead"
    assert "optimizer.pt" in finding.message


def resumed_from(program, baseline, older, first, *, ended=Ended.RECLAIMED, code=None):
    """Judge a trial whose second attempt resumes from an older checkpoint."""
    trial = program.trial([13], flaw=Flaw(older=older))
    one, two = trial.attempts
    injected = (
        Injected(FAULT, "store", 1, at_s=one.trace.ranks[0].saves[-1].begun_at_s),
    )
    one = replace(one, stored=first, ended=ended, exit_code=code, injected=injected)
    two = replace(two, stored=holding(20, 24))
    return judge(replace(trial, attempts=(one, two)), baseline).findings


def test_the_resume_names_the_upload_that_was_refused(program, baseline):
    lost = holding(8, requests=[put(8), refused(12)])
    (finding,) = resumed_from(program, baseline, 1, lost)
    assert finding.name == "upload-lost"
    assert "s3-403 struck PutObject of 'checkpoints/step-012.pt'" in finding.message


def test_who_exits_for_a_refused_upload_has_not_saved(program, baseline):
    lost = holding(8, requests=[put(8), refused(12)])
    found = resumed_from(program, baseline, 1, lost, ended=Ended.FAILED, code=1)
    assert found == ()


def storing_two(program, trial):
    """Let each save put two objects into the store, a moment after it began."""
    attempts = []
    for attempt in trial:
        requests = []
        for save in attempt.trace.ranks[0].saves:
            when_s = save.begun_at_s
            keys = ("step-{:03}.pt", "step-{:03}.json")
            requests += [put(save.step, when_s, key=key) for key in keys]
        stored = Stored({}, {}, tuple(requests))
        attempts.append(replace(attempt, stored=stored))
    return tuple(attempts)


@pytest.mark.parametrize("lost", [1, 0])
def test_an_upload_under_way_at_the_kill_is_not_yet_a_checkpoint(program, lost):
    base = program.baseline()
    baseline = replace(base, runs=storing_two(program, base.runs))
    trial = program.trial([13], flaw=Flaw(older=1))
    one, two = storing_two(program, trial.attempts)
    kept = one.stored.requests[: len(one.stored.requests) - lost]
    one = replace(one, stored=replace(one.stored, requests=kept))
    found = judge(replace(trial, attempts=(one, two)), baseline).findings
    assert names(found) == ([] if lost else ["stale-resume"])


def test_an_upload_that_lags_behind_by_a_save_is_under_way(program):
    base = program.baseline()
    baseline = replace(base, runs=storing_two(program, base.runs))
    trial = program.trial([13], flaw=Flaw(older=2))
    one, two = storing_two(program, trial.attempts)
    # Of the last two saves the store has a part of the first, sent for the second time.
    kept = one.stored.requests[: len(one.stored.requests) - 4]
    begun = replace(COMPLETE, operation="CreateMultipartUpload", kind="object")
    again = [part("1"), replace(COMPLETE, fault="s3-error-body"), begun]
    at_s = one.trace.ranks[0].saves[-1].begun_at_s
    again = [replace(request, at_s=at_s) for request in again]
    one = replace(one, stored=replace(one.stored, requests=(*kept, *again)))
    assert judge(replace(trial, attempts=(one, two)), baseline).findings == ()


def test_a_baseline_that_lags_behind_tells_what_a_save_stores(program):
    base = program.baseline()
    late = [
        replace(run, stored=replace(run.stored, requests=delayed(run)))
        for run in storing_two(program, base.runs)
    ]
    baseline = replace(base, runs=tuple(late))
    trial = program.trial([13], flaw=Flaw(older=1))
    one, two = storing_two(program, trial.attempts)
    kept = one.stored.requests[:-1]  # its last save lacks an object
    one = replace(one, stored=replace(one.stored, requests=kept))
    assert judge(replace(trial, attempts=(one, two)), baseline).findings == ()


def delayed(run):
    """Return requests of which every second comes once the next save has begun."""
    begun = [save.begun_at_s for save in run.trace.ranks[0].saves]
    gap_s = begun[1] - begun[0]
    return tuple(
        replace(request, at_s=request.at_s + gap_s * (index % 2) * 1.1)
        for index, request in enumerate(run.stored.requests)
    )


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_sent_late_is_of_the_save_before(program, whole):
    base = program.baseline()
    baseline = replace(base, runs=storing_two(program, base.runs))
    trial = program.trial([13], flaw=Flaw(older=1))
    one, two = storing_two(program, trial.attempts)
    at_s = one.trace.ranks[0].saves[-1].begun_at_s
    requests = list(one.stored.requests)
    if (
        not whole
    ):  # the last two that came are of the save before, and then it was killed
        late = [replace(request, at_s=at_s + 0.001) for request in requests[-4:-2]]
        requests = [*requests[:-4], *late, replace(part("1"), at_s=at_s + 0.002)]
    one = replace(one, stored=replace(one.stored, requests=tuple(requests)))
    found = judge(replace(trial, attempts=(one, two)), baseline).findings
    assert names(found) == (["stale-resume"] if whole else [])
