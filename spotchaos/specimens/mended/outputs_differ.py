"""No flaw: a total is carried from record to record, and read back from those that are there."""

import json
import os

TOTAL = 40

os.makedirs("out", exist_ok=True)
total = 0
for number in range(TOTAL):
    path = f"out/{number:03d}.json"
    if os.path.exists(path):
        with open(path) as file:
            total = json.load(file)["total"]
        continue
    total += number
    with open("out.tmp", "w") as file:
        json.dump({"id": number, "total": total}, file)
    os.replace("out.tmp", path)
