"""A log, a lock, a state that counts starts, and results that say when and where."""

import fcntl
import json
import logging
import os
import socket
import time

RECORDS = 20


def write(path, value):
    with open("next.tmp", "w") as file:
        json.dump(value, file)
    os.replace("next.tmp", path)


os.makedirs("results", exist_ok=True)
lock = open("job.lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
logging.basicConfig(
    filename="job.log", level=logging.INFO, format="%(asctime)s %(msg)s"
)
carried, state = 0, {"done": 0, "restarts": -1}
if os.path.exists("state.json"):
    with open("state.json") as file:
        state = json.load(file)
state["restarts"] += 1
logging.info("start at %d", state["done"])
for number in range(state["done"], RECORDS):
    result = {"id": number, "third": number / 3, "host": socket.gethostname()}
    result |= {"finished_at": time.time(), "seconds": time.perf_counter() % 1}
    write(f"results/{number}.json", result)
    state.update(done=number + 1, updated_at=time.time(), pid=os.getpid())
    write("state.json", state)
logging.info("done")
