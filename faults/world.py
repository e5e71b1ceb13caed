"""A server, producers and consumers around it, and what can be asked of them."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg

from faults import journal
from faults.journal import Disruption, Journal, now
from faults.modes import RELAY, Mode
from faults.oracle import Facts, GroupMessage, RunRecords
from faults.servers.postgres import DATABASE, Server
from faults.servers.run import USER, grant_roles
from faults.stage import Scene
from faults.stream import StreamReader
from postbus import Bus, PostbusError
from postbus._db.migrator import migrate

_LONGEST = 300.0  # seconds until everything is settled, however many messages kill their handlers meanwhile
_ROOT = Path(__file__).parent.parent
NOT_THERE = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, PostbusError)

_LEFT_OVER = """
    select (select count(*) from postbus.queued) + (select count(*) from postbus.delayed)
         + (select coalesce(sum(cardinality(l.messages)), 0) from postbus.lease l)
         + (select count(*) from postbus.deferred)
         + (select coalesce(sum((postbus.group_lag(s.id)).messages), 0) from postbus.subscription s)
"""
_LEFT = (
    "select clock_timestamp(), subscription_id, lane, id, key, parked, due_at, attempts from postbus.deferred",
    "select * from postbus.lane order by subscription_id, lane",
    "select name, pid, seen_at from postbus.worker",
    "select token, topic_id, member, ends_at, open_ids from postbus.lease",
)
_NOT_COMPLETED = """
    select count(*) from postbus.message_states m
     where m.topic = $1 and m.status <> 'COMPLETED' and not exists (select from postbus.dead_letter d where d.id = m.id)
"""
# Partitions are numbered from 1 on, and the oldest are dropped first.
_DROPPED = """
    select coalesce(sum(oldest - 1), 0)::integer
      from (select min(epoch) as oldest from postbus.log_partition join postbus.log_storage s on s.id = storage_id
             where s.topic_id is not null group by storage_id) as part
"""


class Unsettled(Exception):
    """Not all was handled in time."""


class Process:
    """A producer or a consumer."""

    def __init__(self, module: str, folder: Path, number: int, database: str, options: Mapping[str, object]) -> None:
        self.database = database
        self.name = f"{module}-{number}"
        self.errors = folder / f"{self.name}.err"
        self.journal = folder / f"{self.name}.journal"
        given = {"journal": self.journal, **options}
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"faults.{module}", *(f"--{name}={value}" for name, value in given.items())],
                cwd=_ROOT,
                stderr=errors,
            )
        self.is_doomed = False
        """Its death is wanted."""
        self.is_replaced = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self.is_doomed = True
        self._process.kill()
        self._process.wait()

    async def ended(self, within: float) -> int | None:
        """Its exit code; None if it goes on."""
        with suppress(subprocess.TimeoutExpired):
            return await asyncio.to_thread(self._process.wait, within)
        return None

    async def end(self, within: float = 20.0) -> str:
        """Ask it to end. Returns what was wrong with that."""
        if not self.is_alive:
            return "" if self.is_doomed else f"{self.name} ended with {self._process.returncode}: {self._last_words()}"
        self.signal(signal.SIGTERM)
        code = await self.ended(within)
        if code is None:
            self.signal(signal.SIGUSR1)  # what it waits for is in the files of the run then
            await asyncio.sleep(0.5)
            self.kill()
            return f"{self.name} did not end within {within:g} s"
        was_starting = code == -signal.SIGTERM and not self._has_begun
        is_well = code == 0 or self.is_doomed or was_starting
        return "" if is_well else f"{self.name} ended with {code}: {self._last_words()}"

    @property
    def _has_begun(self) -> bool:
        return self.journal.exists() and self.journal.stat().st_size > 0

    def _last_words(self) -> str:
        return "; ".join(self.errors.read_text(errors="replace").splitlines()[-3:])


class World:
    """All that belongs to one run. Clients go by the scene's DSN; `server` is asked behind their back."""

    def __init__(self, scene: Scene, folder: Path, modes: Sequence[Mode], seed: str) -> None:
        self.scene = scene
        self.server: Server = scene.server
        """The one that is the primary now."""
        self.folder = folder
        self.modes = modes
        self.random = random.Random(seed)
        self.restarting = asyncio.Lock()
        """Held by who takes the server down."""
        self.producers: list[Process] = []
        self.consumers: list[Process] = []
        self.consumer_options: Mapping[str, object] = {}
        """The options of the consumers that are there from the beginning."""
        self._seed = seed
        self._journal = Journal(folder / "driver.journal")
        self._count = 0
        self.databases = list(dict.fromkeys(mode.database for mode in modes))
        self.reader = StreamReader(scene.stream, modes, folder / "stream.journal") if scene.stream else None

    # topics and processes

    async def prepare(self, topic_options: Mapping[str, Any]) -> None:
        """Make the topics. Those that drop their messages do it soon."""
        for database in self.databases:
            await self._prepare(database, topic_options)
            await self.ask("create table effect (mode text, group_name text, key text, n int)", database=database)
            await self.ask("grant insert on effect to public", database=database)
        await self.ask("checkpoint")  # the tables outlive a server whose commits do not

    async def _prepare(self, database: str, topic_options: Mapping[str, Any]) -> None:
        if database != DATABASE:
            await self.server.ask(f"create database {database}")
            conn: Any = await asyncpg.connect(self.server.socket_dsn(database))
            await migrate(conn)
            await grant_roles(conn, database)
            await conn.close()
        modes = self.modes_of(database)
        async with Bus.open(self.server.dsn(database)) as bus:
            for mode in modes:
                for topic in {mode.topic, mode.entry}:
                    await bus.admin.create_topic(topic, **{**mode.options, **topic_options})
        subscribe = "select postbus.subscribe($1, $2, 'FROM_BEGINNING')"
        for mode in modes:
            for group in filter(None, mode.groups):
                await self.ask(subscribe, mode.topic, group, database=database)
            if mode.is_relayed:
                await self.ask(subscribe, mode.entry, RELAY, database=database)
        await self.ask("update postbus.sweep_setting set interval = '1 second'", database=database)
        await self.ask(
            "update postbus.log_storage set period = '1 second' where topic_id is not null", database=database
        )
        if any(mode.is_streamed for mode in modes):  # a queue's first id is that of the log's tenth segment
            await self.ask("select setval('postbus.message_id', 10 * 1024, false)", database=database)

    def modes_of(self, database: str) -> list[Mode]:
        return [mode for mode in self.modes if mode.database == database]

    def start_producer(self, database: str = DATABASE, **options: object) -> Process:
        process = self._start("producer", database, options)
        self.producers.append(process)
        return process

    def start_consumer(self, database: str = DATABASE, **options: object) -> Process:
        process = self._start("consumer", database, options)
        self.consumers.append(process)
        return process

    def _start(self, module: str, database: str, options: Mapping[str, object]) -> Process:
        self._count += 1
        given = {
            "dsn": self.scene.dsn if database == DATABASE else self.server.dsn(database, user=USER),
            "modes": ",".join(mode.name for mode in self.modes_of(database)),
            "seed": f"{self._seed}.{self._count}",
            "stream": self.scene.stream,
            **options,
        }
        return Process(module, self.folder, self._count, database, given)

    async def replace_the_dead(self) -> None:
        """Start a consumer for each that was killed, until cancelled."""
        while True:
            for one in [one for one in self.consumers if not one.is_alive and not one.is_replaced]:
                one.is_doomed = one.is_replaced = True
                self.start_consumer(one.database)
            await asyncio.sleep(0.1)

    async def flows(self, messages: int = 50, within: float = 30.0) -> None:
        """Wait until so many more messages were handled."""
        before = len(self._handled())
        deadline = time.monotonic() + within
        while len(self._handled()) < before + messages:
            if time.monotonic() > deadline:
                raise Unsettled(f"no {messages} messages were handled within {within:g} s")
            await asyncio.sleep(0.1)

    async def drops(self, within: float = 30.0) -> None:
        """Wait until a part of the log was dropped, while messages flow: a check of what is dropped early needs one."""
        deadline = time.monotonic() + within
        while not any([await self.ask(_DROPPED, database=database) for database in self.databases]):
            if time.monotonic() > deadline:
                raise Unsettled(f"no part of the log was dropped within {within:g} s")
            await asyncio.sleep(0.1)

    def _handled(self) -> set[GroupMessage]:
        return set(self.story().ended)

    # faults

    @asynccontextmanager
    async def hurting(self, fault: str, *, excuses: bool = True, aftermath: float = 1.0) -> AsyncIterator[None]:
        """Count everything in the block, and for `aftermath` seconds more, as a fault."""
        since = now()
        try:
            yield
        finally:
            self._journal.note(Disruption(fault, since, now() + int(aftermath * 1e9), excuses))

    # looking

    def story(self) -> RunRecords:
        return RunRecords(journal.read(self.folder), self.modes)

    async def ask(self, sql: str, *args: Any, database: str = DATABASE) -> Any:
        return await self.server.ask(sql, *args, database=database)

    async def settles(self, within: float) -> float:
        """Wait until nothing is left to do. Returns the seconds that took.

        Messages that kill their handler go on doing so after the producers have ended: each death begins the time anew,
        since what waits behind it cannot go on before the lanes of the dead process are taken.
        """
        began = last_death = time.monotonic()
        deaths = len(self.consumers)
        left: object = "?"
        while time.monotonic() < min(last_death + within, began + _LONGEST):
            if len(self.consumers) > deaths:
                deaths, last_death = len(self.consumers), time.monotonic()
            with suppress(*NOT_THERE):
                left = sum([await self._left_over(database) for database in self.databases])
                if left == 0 and (self.reader is None or await self.reader.has_all()):
                    return time.monotonic() - began
            await asyncio.sleep(0.2)
        raise Unsettled(f"{left} messages were left after {within:g} s")

    async def _left_over(self, database: str) -> int:
        for storage in await self.ask(
            "select coalesce(array_agg(id), '{}') from postbus.log_storage", database=database
        ):
            # Lags are counted by sweeps.
            await self.ask("select counted from postbus.sweep_log($1)", storage, database=database)
        return int(await self.ask(_LEFT_OVER, database=database))

    async def tell_what_is_left(self) -> None:
        """Write down what the database has, and what the consumers wait for, where not all was handled."""
        for one in self.consumers:
            if one.is_alive:
                one.signal(signal.SIGUSR1)
        conn: Any = await asyncpg.connect(self.server.socket_dsn(), timeout=10)
        try:
            rows = [row for sql in _LEFT for row in await conn.fetch(sql)]
        finally:
            conn.terminate()
        (self.folder / "left.txt").write_text("\n".join(map(str, rows)))
        await asyncio.sleep(0.5)

    async def facts(self) -> Facts:
        """The state of the database at the end."""
        facts = Facts()
        for database in self.databases:
            await self._look(database, facts)
        return facts

    async def _look(self, database: str, facts: Facts) -> None:
        names = {topic: mode.name for mode in self.modes_of(database) for topic in (mode.topic, mode.entry)}
        conn: Any = await asyncpg.connect(self.server.socket_dsn(database), timeout=10)
        try:
            for row in await conn.fetch(
                "select mode, group_name, key, n, count(*) as times from effect group by 1, 2, 3, 4"
            ):
                facts.effects[GroupMessage(row["mode"], row["group_name"], row["key"], row["n"])] = row["times"]
            for row in await conn.fetch("select topic, group_name, payload_json from postbus.dead_letters"):
                order = json.loads(row["payload_json"])
                facts.dead.add(
                    GroupMessage(
                        names.get(row["topic"], row["topic"]), row["group_name"] or "", order["key"], order["n"]
                    )
                )
            for row in await conn.fetch(
                "select t.name, sum(l.messages) as messages from postbus.loss l"
                "  join postbus.subscription s on s.id = l.subscription_id"
                "  join postbus.topic t on t.id = s.topic_id group by 1"
            ):
                facts.lost_by_retention[names.get(row["name"], row["name"])] = int(row["messages"])
            facts.dropped += await conn.fetchval(_DROPPED)
            for mode in self.modes_of(database):
                if mode.has_receipts and (count := await conn.fetchval(_NOT_COMPLETED, mode.topic)):
                    facts.not_completed[mode.name] = count
        finally:
            conn.terminate()

    # the end

    async def stop_producers(self) -> list[str]:
        return [wrong for one in self.producers if (wrong := await one.end())]

    async def stop_consumers(self) -> list[str]:
        wrongs = await asyncio.gather(*(one.end() for one in self.consumers))
        return [wrong for wrong in wrongs if wrong]

    def close(self) -> None:
        for one in (*self.producers, *self.consumers):
            if one.is_alive:
                one.signal(signal.SIGCONT)
                one.kill()
        self._journal.close()
