"""One flaw: a total is carried from record to record, and begins again after a kill."""

import json
import os

TOTAL = 40

os.makedirs("out", exist_ok=True)
total = 0
for number in range(TOTAL):
    path = f"out/{number:03d}.json"
    if os.path.exists(path):
        continue
    total += number
    with open("out.tmp", "w") as file:
        json.dump({"id": number, "total": total}, file)
    os.replace("out.tmp", path)
