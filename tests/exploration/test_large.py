"""Large checkpoints: states share their bytes on disk, and no resume writes through."""

import shutil
from pathlib import Path

import pytest
import xxhash

from spotchaos.config.settings import Settings
from spotchaos.explore import recorder
from spotchaos.explore.exploration import explore
from spotchaos.persistence.materialise import Materialiser

PROGRAM = Path(__file__).parent / "programs" / "toy.py"


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_no_resume_writes_through_a_link_into_our_store(tmp_path, monkeypatch):
    used = []
    real = Materialiser._blob

    def checked(self, content):
        blob = real(self, content)
        digest = xxhash.xxh3_128(blob.read_bytes()).hexdigest()
        used.append(digest == self._history.digest(content))
        return blob

    monkeypatch.setattr(Materialiser, "_blob", checked)
    monkeypatch.setenv("WIDTH", "12000")  # a checkpoint of 1.6 MB
    # Recorded up to the second save alone, as if it were more than a disk holds.
    monkeypatch.setattr(recorder, "LARGE_BYTES", 1 << 20)
    monkeypatch.setattr(recorder, "MOST_BYTES", 2 << 20)
    shutil.copy(PROGRAM, tmp_path)
    command = ("python", "toy.py", "replaced")
    outcome = explore(Settings(command=command, folder=tmp_path), lambda event: None)
    told = outcome.coverage["crash_states"]
    assert len(used) >= 3
    assert all(used)
    assert told["held"] == told["distinct"] > 20
    assert str(outcome.verdict) == "held"
    assert any("the first 2 saves" in why for why in told["why_not_visited"])
    assert any("kills during a resume" in why for why in told["why_not_visited"])
