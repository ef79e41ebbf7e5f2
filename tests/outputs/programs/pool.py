"""Lines of a pool of threads, in any order; a start cuts half a line off, and skips."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

RECORDS = 60

done = set()
if os.path.exists("out.jsonl"):
    with open("out.jsonl", "rb+") as file:
        whole = file.read().rpartition(b"\n")[0]
        file.truncate(len(whole) + 1 if whole else 0)
    done = {json.loads(line)["id"] for line in whole.splitlines()}
lock = threading.Lock()
with open("out.jsonl", "a") as out:

    def work(number):
        line = json.dumps({"id": number, "rest": number * 7 % 13}) + "\n"
        with lock:
            out.write(line)
            out.flush()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [n for n in range(RECORDS) if n not in done]))
