"""One flaw: records since the last cursor are written once more after a kill."""

import json
import os

TOTAL, EVERY = 40, 5

start = 0
if os.path.exists("cursor"):
    with open("cursor") as file:
        start = int(file.read())
with open("out.jsonl", "a") as out:
    for number in range(start, TOTAL):
        out.write(json.dumps({"id": number, "square": number**2}) + "\n")
        out.flush()
        if (number + 1) % EVERY == 0:
            with open("cursor.tmp", "w") as file:
                file.write(str(number + 1))
            os.replace("cursor.tmp", "cursor")
