"""One flaw: the cursor moves while the record that it counts is still in a buffer."""

import json
import os

TOTAL = 40

start = 0
if os.path.exists("cursor"):
    with open("cursor") as file:
        start = int(file.read())
with open("out.jsonl", "a") as out:
    for number in range(start, TOTAL):
        out.write(json.dumps({"id": number, "square": number**2}) + "\n")
        with open("cursor.tmp", "w") as file:
            file.write(str(number + 1))
        os.replace("cursor.tmp", "cursor")
