"""How long a fan-out outbox's consistency query takes, beside how long it took at another commit, in one run.

    python tools/compare_states.py [--commit 9ea634f] [--messages 150000] [--batch 500]

Both get a database of their own in one embedded server, with the same messages: one group has handled all of them, one
half of them and one none. Then both are asked by turns. Prints one JSON object; exits 0 only if the goal is met.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import asyncpg

from postbus._db.migrator import migrate
from postbus.embedded import EmbeddedPostgres

_ROOT = Path(__file__).parent.parent
_GOAL = 10
_LANES = 8
_QUERY = """
    select o.topic, count(*) as inconsistent_count
      from outbox o
     inner join outbox_topics t on t.topic = o.topic
     where t.semantics = 'PUB_SUB' and o.status in ('PENDING', 'PROCESSING')
       and o.required_consumer_groups != (select count(*) from outbox_topic_subscriptions s
                                           where s.topic = o.topic and s.subscription_status = 'ACTIVE')
     group by o.topic
"""
_PUBLISH = (
    "select postbus.publish_many('orders', array_fill('{\"n\":1}'::bytea, array[$1::int])) from generate_series(1, $2)"
)
_ADVANCE = (
    "select postbus.advance(subscription_ids => array[$1::bigint], lanes => array[$2::int], "
    "numbers => array[$3::bigint], cursors => array[$4], done_sequences => array[null::bigint], "
    "done_indexes => array[null::int], passed => array[$5::bigint]{})"
)
_TOKENS = ", tokens => array[$6::uuid]"
"""The parameter that newer functions require."""


async def load(dsn: str, messages: int, batch: int) -> None:
    """Fill a database with the code that is imported, whichever that is."""
    conn: Any = await asyncpg.connect(dsn)
    await migrate(conn)
    options = json.dumps({"semantics": "PUB_SUB", "lanes": _LANES})
    await conn.execute("select postbus.create_topic('orders', $1)", options)
    groups = [
        await conn.fetchval("select subscription_id from postbus.subscribe('orders', $1)", name)
        for name in ("all", "half", "none")
    ]
    step = max(batch, 100)
    for _ in range(messages // step):
        await conn.execute(_PUBLISH, batch, step // batch)
    await conn.execute("analyze")
    await _work(conn, groups[0], messages)
    await _work(conn, groups[1], messages // 2)
    await conn.execute("analyze")
    await conn.close()


async def _work(conn: Any, group: int, messages: int) -> None:
    """Let a group settle about as many messages, of all lanes alike."""
    await conn.execute("select postbus.heartbeat('w', 'host', 1, '{}')")
    rows = await conn.fetch("select * from postbus.lease_lanes('w', array[$1::bigint], '{}')", group)
    asks = await conn.fetchval("select 'tokens' = any (proargnames) from pg_proc where proname = 'advance'")
    advance = _ADVANCE.format(_TOKENS if asks else "")
    for row in rows:
        cursor, number, done = row["cursor"], row["number"], 0
        while row["action"] == "take" and done < messages / _LANES:
            read = "select * from postbus.read_log('orders', array[$1::int], $2, max_count => 1000)"
            found = await conn.fetch(read, row["lane"], cursor)
            end = found.pop()
            count = sum(one["count"] - one["first_index"] for one in found)
            if not count:
                break
            token = [row["token"]] if asks else []
            await conn.execute(advance, group, row["lane"], number, end["next_cursor"], count, *token)
            cursor, number, done = end["next_cursor"], number + 1, done + count
    await conn.execute("select postbus.leave_groups('w', array[$1::bigint])", group)


async def ask(dsn: str) -> float:
    """How many seconds the query takes."""
    conn: Any = await asyncpg.connect(dsn, server_settings={"search_path": "postbus_outbox"})
    began = time.perf_counter()
    await conn.fetch(_QUERY)
    seconds = time.perf_counter() - began
    await conn.close()
    return seconds


async def make_databases(postgres: EmbeddedPostgres) -> None:
    conn: Any = await asyncpg.connect(postgres.dsn())
    for name in ("before", "now"):
        await conn.execute(f"create database {name}")
    await conn.close()


def compare(commit: str, messages: int, batch: int, rounds: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        archive = subprocess.run(["git", "archive", commit, "src"], cwd=_ROOT, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        with EmbeddedPostgres.start(Path(folder) / "server") as postgres:
            asyncio.run(make_databases(postgres))
            for name, source in (("before", Path(folder) / "src"), ("now", _ROOT / "src")):
                command = [sys.executable, __file__, "--load", postgres.dsn(name)]
                command += ["--messages", str(messages), "--batch", str(batch)]
                subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(source)})
            took: dict[str, list[float]] = {"before": [], "now": []}
            for _ in range(rounds):
                for name, times in took.items():
                    times.append(asyncio.run(ask(postgres.dsn(name))))
    best = {name: min(times) for name, times in took.items()}
    ratio = best["before"] / best["now"]
    is_met = ratio >= _GOAL
    print(json.dumps({
        "scenario": "states",
        "settings": {"commit": commit, "messages": messages, "batch": batch, "rounds": rounds},
        "figures": {"before_s": best["before"], "now_s": best["now"], "ratio": ratio},
        "checks": [{"name": "ratio", "value": ratio, "goal": f">= {_GOAL}", "ok": is_met}],
    }, indent=2))  # fmt: skip
    return is_met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default="9ea634f")
    parser.add_argument("--messages", type=int, default=150_000)
    parser.add_argument("--batch", type=int, default=500, help="messages per publish call")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load:
        asyncio.run(load(given.load, given.messages, given.batch))
        return 0
    return 0 if compare(given.commit, given.messages, given.batch, given.rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
