"""One flaw: what a killed attempt had unpacked lies among the inputs, and is taken for one."""

import json
import os

INPUTS = 20


def write(path, text):
    with open(path + ".tmp", "w") as file:
        file.write(text)
    os.replace(path + ".tmp", path)


os.makedirs("inputs", exist_ok=True)
os.makedirs("out", exist_ok=True)
for number in range(INPUTS):
    write(f"inputs/{number:02d}.txt", "word " * number)
UNPACKED = f"inputs/{os.getpid()}.txt"
for name in sorted(n for n in os.listdir("inputs") if n.endswith(".txt")):
    result = f"out/{name[:-4]}.json"
    if os.path.exists(result):
        continue
    with open("inputs/" + name) as file:
        text = file.read()
    with open(UNPACKED, "w") as file:
        file.write(text.upper())
    write(result, json.dumps({"id": name, "letters": len(text.replace(" ", ""))}))
    os.remove(UNPACKED)
