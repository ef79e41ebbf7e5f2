"""No flaw: the record is written first; a resume cuts off what the cursor does not count."""

import json
import os

TOTAL = 40

start, valid = 0, 0
if os.path.exists("cursor"):
    with open("cursor") as file:
        start, valid = map(int, file.read().split())
with open("out.jsonl", "a") as out:
    out.truncate(valid)
    for number in range(start, TOTAL):
        out.write(json.dumps({"id": number, "square": number**2}) + "\n")
        out.flush()
        with open("cursor.tmp", "w") as file:
            file.write(f"{number + 1} {out.tell()}")
        os.replace("cursor.tmp", "cursor")
