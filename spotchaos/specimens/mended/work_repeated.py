"""No flaw: a start goes on with the first record that is not there."""

import os

TOTAL = 30

os.makedirs("out", exist_ok=True)
for number in range(TOTAL):
    path = f"out/{number:03d}.txt"
    if os.path.exists(path):
        continue
    with open("out.tmp", "w") as file:
        file.write(f"{number} {number**2}\n")
    os.replace("out.tmp", path)
