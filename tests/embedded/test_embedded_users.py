"""Many users of one folder share one server, which ends with the last of them however that one ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from embedded.helpers import Eventually, NewUser, Processes, query, spawn
from postbus.embedded import EmbeddedPostgres
from postbus.errors import EmbeddedError

COMES_AND_GOES = """
import asyncio, sys, asyncpg
from postbus.embedded import EmbeddedPostgres

async def ask(dsn):
    connection = await asyncpg.connect(dsn)
    assert await connection.fetchval("select 42") == 42
    await connection.close()

for _ in range(5):
    with EmbeddedPostgres.start(sys.argv[1]) as postgres:
        asyncio.run(ask(postgres.dsn()))
"""


def state(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "server.json").read_text()))


def test_second_process_attaches(folder: Path, new_user: NewUser) -> None:
    """Another process with the same folder gets the running server."""
    with EmbeddedPostgres.start(folder):
        assert new_user(folder).server() == state(folder)["pid"]


def test_server_outlives_the_process_that_started_it(folder: Path, new_user: NewUser, processes: Processes) -> None:
    """It runs until the last user has closed."""
    first = new_user(folder)
    first.server()
    with EmbeddedPostgres.start(folder) as second:
        first.leave()

        assert query(second, "select 42") == 42
    assert processes() == []


def test_user_that_ends_without_closing_leaves_nothing(folder: Path, new_user: NewUser, processes: Processes) -> None:
    """The library closes the server at the end of the process."""
    user = new_user(folder)
    user.server()

    user.leave()

    assert processes() == []


def test_server_ends_with_its_killed_user(
    folder: Path, new_user: NewUser, processes: Processes, eventually: Eventually
) -> None:
    """When the only user is killed with SIGKILL, the server and its supervisor end."""
    user = new_user(folder)
    user.server()

    user.kill()

    eventually(lambda: processes() == [])


def test_killed_user_does_not_end_the_server_of_others(folder: Path, new_user: NewUser) -> None:
    """When one of two users is killed, the other one keeps the same server."""
    killed = new_user(folder)
    server = killed.server()
    with EmbeddedPostgres.start(folder) as stays:
        killed.kill()

        assert query(stays, "select 42") == 42
        assert state(folder)["pid"] == server


def test_ctrl_c_does_not_reach_the_server(folder: Path, new_user: NewUser) -> None:
    """Supervisor and server are outside of their users' sessions, where a terminal's signals go."""
    new_user(folder).server()

    assert os.getsid(state(folder)["supervisor"]) != os.getsid(0)
    assert os.getsid(state(folder)["pid"]) != os.getsid(0)


def test_forked_child_is_a_user(folder: Path, processes: Processes, eventually: Eventually) -> None:
    """It keeps the server when its parent closes, until it ends itself."""
    postgres = EmbeddedPostgres.start(folder)
    keep_going, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(keep_going, 1)
        os._exit(0)
    postgres.close()
    assert processes() != []

    os.close(end)
    os.waitpid(child, 0)
    os.close(keep_going)

    eventually(lambda: processes() == [])


def test_concurrent_starters_of_a_fresh_folder_share_one_server(fresh_folder: Path, new_user: NewUser) -> None:
    """Eight processes start at once in a folder that does not exist."""
    users = [new_user(fresh_folder) for _ in range(8)]

    assert len({user.server() for user in users}) == 1

    for user in users:
        user.leave()


def test_users_that_come_and_go_always_find_a_server(folder: Path, processes: Processes) -> None:
    """A user that comes while the server stops gets one that answers."""
    users = [spawn(COMES_AND_GOES, folder) for _ in range(10)]

    for user in users:
        _, complaints = user.communicate()
        assert user.returncode == 0, complaints
    assert processes() == []


def test_stopping_server_is_started_again(folder: Path, processes: Processes) -> None:
    """Threads that start and close as fast as they can never see a stopped server."""
    failures: list[BaseException] = []

    def come_and_go() -> None:
        try:
            for _ in range(10):
                with EmbeddedPostgres.start(folder) as postgres:
                    assert query(postgres, "select 42") == 42
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert processes() == []


@pytest.mark.parametrize("victim", ["supervisor", "pid"], ids=["supervisor", "server"])
def test_next_start_works_after_a_kill(folder: Path, victim: str) -> None:
    """A killed supervisor ends its server; afterwards, or after a killed server, the data is there."""
    with EmbeddedPostgres.start(folder) as bereft:

        async def write() -> None:
            connection = await asyncpg.connect(bereft.dsn())
            await connection.execute("create table kept as select 42 as answer")
            os.kill(state(folder)[victim], signal.SIGKILL)
            connection.terminate()

        asyncio.run(write())
        with EmbeddedPostgres.start(folder) as postgres:
            assert query(postgres, "select answer from kept") == 42
            assert query(bereft, "select 42") == 42, "the first user's DSN leads to the new server"

        assert "automatic recovery" in (folder / "postbus-server.log").read_text()


@pytest.mark.parametrize("victim", ["supervisor", "pid"], ids=["supervisor", "server"])
def test_kill_leaves_no_process(folder: Path, processes: Processes, eventually: Eventually, victim: str) -> None:
    """When the supervisor or the server is killed, the other one ends too, with or without users."""
    with EmbeddedPostgres.start(folder):
        os.kill(state(folder)[victim], signal.SIGKILL)

        eventually(lambda: processes() == [])


def test_dead_server_is_not_taken_for_a_running_one(folder: Path) -> None:
    """A user that comes before the supervisor has noticed the kill does not attach."""
    with EmbeddedPostgres.start(folder):
        server = state(folder)
        os.kill(server["supervisor"], signal.SIGSTOP)
        os.kill(server["pid"], signal.SIGKILL)
        try:
            with pytest.raises(EmbeddedError, match="did not answer in time"):
                EmbeddedPostgres.start(folder, timeout=0.2)
        finally:
            os.kill(server["supervisor"], signal.SIGCONT)

        with EmbeddedPostgres.start(folder) as postgres:
            assert query(postgres, "select 42") == 42
