"""A queue in SQLite: who claims a row has a lease, and it is free again once that ends."""

import sqlite3
import time

ROWS, LEASE_S = 15, 0.5
FREE = "state = 'open' or (state = 'busy' and lease_until < :now)"

base = sqlite3.connect("jobs.db", isolation_level=None, timeout=5)
base.execute("pragma journal_mode = wal")
base.execute(
    "create table if not exists jobs (id integer primary key, state text,"
    " lease_until real, attempts integer default 0, result integer)"
)
base.execute("begin immediate")
if not base.execute("select count(*) from jobs").fetchone()[0]:
    base.executemany(
        "insert into jobs (id, state) values (?, 'open')", [(n,) for n in range(ROWS)]
    )
base.execute("commit")
while True:
    base.execute("begin immediate")
    row = base.execute(
        f"select id from jobs where {FREE} order by id limit 1", {"now": time.time()}
    ).fetchone()
    if row is None:
        base.execute("commit")
        busy = base.execute(
            "select count(*) from jobs where state = 'busy' and :waits", {"waits": 1}
        ).fetchone()
        if not busy[0]:
            break
        time.sleep(0.1)
        continue
    base.execute(
        "update jobs set state = 'busy', lease_until = ?, attempts = attempts + 1"
        " where id = ?",
        (time.time() + LEASE_S, row[0]),
    )
    base.execute("commit")
    base.execute(
        "update jobs set state = 'done', result = ? where id = ?", (row[0] ** 2, row[0])
    )
base.close()
