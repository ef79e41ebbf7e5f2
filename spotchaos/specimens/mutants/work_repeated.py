"""One flaw: every start begins with the first record; what is there is made again."""

import os

TOTAL = 30

os.makedirs("out", exist_ok=True)
for number in range(TOTAL):
    path = f"out/{number:03d}.txt"
    with open("out.tmp", "w") as file:
        file.write(f"{number} {number**2}\n")
    os.replace("out.tmp", path)
