"""No flaw: the output tells what is done; a resume cuts half a line off first."""

import json
import os

TOTAL = 40

done = set()
if os.path.exists("out.jsonl"):
    with open("out.jsonl", "rb+") as file:
        whole = file.read().rpartition(b"\n")[0]
        file.truncate(len(whole) + 1 if whole else 0)
    done = {json.loads(line)["id"] for line in whole.splitlines()}
with open("out.jsonl", "a") as out:
    for number in range(TOTAL):
        if number not in done:
            out.write(json.dumps({"id": number, "square": number**2}) + "\n")
            out.flush()
