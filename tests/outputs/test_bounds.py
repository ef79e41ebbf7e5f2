"""Comparing very many records takes seconds and little memory."""

import json
import subprocess
import sys
import textwrap

import pytest

RECORDS = 1_000_000
COMPARE = """
    import json, resource, sys
    from pathlib import Path
    from spotchaos.outputs.comparing import compare
    from spotchaos.outputs.masks import Rules
    rules = Rules(keys={"o.jsonl": "id"})
    before = resource.getrusage(resource.RUSAGE_SELF)
    trees = [{"o.jsonl": Path(p)} for p in sys.argv[1:]]
    found = compare(*trees, rules)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    said = [(d.kind, d.count, d.record) for d in found]
    # Not ru_maxrss, which begins with that of the process that forked this one.
    status = Path("/proc/self/status").read_text()
    most_kib = int(status.partition("VmHWM:")[2].split()[0])
    print(json.dumps([cpu_s, most_kib * 1024, said]))
"""


@pytest.mark.slow
def test_a_million_records_are_compared_in_seconds_and_little_memory(tmp_path):
    line = '{"id": %d, "text": "' + "x" * 150 + '", "score": %.6f}\n'
    lines = [line % (i, i / 7) for i in range(RECORDS)]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.write_text("".join(lines))
    assert whole.stat().st_size > 180e6
    middle = RECORDS // 2
    with cut.open("w") as file:
        file.writelines(lines[:10] + lines[11:middle])
        file.writelines(lines[middle - 3 :])
    del lines
    command = [sys.executable, "-c", textwrap.dedent(COMPARE), str(whole), str(cut)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    cpu_s, most_bytes, said = json.loads(ran.stdout)
    assert said == [["repeated", 3, f"id {middle - 3}"], ["missing", 1, "id 10"]]
    assert cpu_s < 4
    assert most_bytes < 300e6
