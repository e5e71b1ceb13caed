"""Common behaviour of all commands: options, errors, exit codes, help."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

import postbus
from cli.helpers import Cli, Result, finish, start
from postbus import Bus, EmbeddedError, PostbusError
from postbus._db import migrator
from postbus._db.error_map import MIGRATE
from postbus.cli._exits import EXIT_CODES, exit_code_of

NOWHERE = "postgresql://postgres@127.0.0.1:1/postgres"

COMMANDS = (
    "topics list",
    "topics create x",
    "topics show x",
    "topics set x --lease 1m",
    "topics pause x",
    "topics resume x",
    "topics delete x --yes",
    "topics purge x",
    "publish x 1",
    "tail x",
    "consume x --max 1",
    "dead-letters list",
    "dead-letters show 1",
    "dead-letters redrive x --all",
    "dead-letters purge x --all",
    "migrate",
)


async def run(*args: str, **env: str) -> Result:
    return await finish(await start(*args, env=env))


@pytest.fixture
def nowhere(tmp_path: Path) -> Cli:
    """Run the command line with an unreachable database."""
    return Cli(NOWHERE, tmp_path)


@pytest.mark.parametrize("args", COMMANDS)
async def test_unreachable_server_ends_with_5(nowhere: Cli, args: str) -> None:
    """Every command says that the database cannot be reached."""
    failed = (await nowhere.quick(*args.split(), "--json")).failed(5)

    assert failed.error["code"] == "PB504"
    assert "--dsn, POSTBUS_DSN" in failed.error["remedy"]


async def test_missing_schema_ends_with_6(empty_dsn: str, tmp_path: Path) -> None:
    """Every command says that the schema is missing."""
    for args in COMMANDS[:-1]:
        failed = (await Cli(empty_dsn, tmp_path).quick(*args.split())).failed(6)

        assert failed.err == f"error: the database has no schema postbus\nremedy: {MIGRATE}\n"


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        ({"path": "/nosuchdatabase"}, 4, 'database "nosuchdatabase" does not exist'),
        ({"netloc": "nosuchuser@"}, 5, 'role "nosuchuser" does not exist'),
        ({"scheme": "mysql"}, 4, "bad DSN"),
    ],
)
async def test_wrong_dsn_is_reported(cli: Cli, dsn: str, change: dict[str, str], code: int, told: str) -> None:
    """The error distinguishes database, user and form of the DSN."""
    cli.env["POSTBUS_DSN"] = urlsplit(dsn)._replace(**change).geturl()

    failed = (await cli.quick("topics", "list")).failed(code)

    assert told in failed.err


async def test_missing_rights_end_with_5(cli: Cli, dsn: str, conn: Any) -> None:
    """The remedy names the roles."""
    role = f"nobody_{conn.get_server_pid()}"
    await conn.execute(f"create role {role} login")
    try:
        cli.env["POSTBUS_DSN"] = urlsplit(dsn)._replace(netloc=f"{role}@").geturl()

        failed = (await cli.quick("topics", "list")).failed(5)

        assert "postbus_observer" in failed.err
    finally:
        await conn.execute(f"drop role {role}")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("update postbus.installed set code_checksum = 'other', code_version = '0.0.1'", "PB502"),
        ("insert into postbus.migration (number, name, breaking) values (999, 'later', true)", "PB503"),
    ],
)
async def test_schema_of_another_version_ends_with_6(cli: Cli, conn: Any, change: str, told: str) -> None:
    """The schema may be too old or too new."""
    await conn.execute(change)

    failed = (await cli.quick("topics", "list", "--json")).failed(6)

    assert failed.error["code"] == told


async def test_options_may_stand_before_or_after_the_command(dsn: str) -> None:
    """--dsn and --json mean the same in both positions."""
    before, after = await asyncio.gather(
        run("--dsn", dsn, "--json", "topics", "list"), run("topics", "list", "--json", "--dsn", dsn)
    )

    assert before.done().out == after.done().out == "[]\n"


async def test_empty_dsn_is_refused() -> None:
    """An empty --dsn, as from an unset variable, does not mean the embedded server."""
    assert "--dsn is empty" in (await run("topics", "list", "--dsn", "")).failed(2).err


async def test_dsn_and_data_dir_exclude_each_other(nowhere: Cli) -> None:
    """The error says that both are given."""
    failed = (await nowhere.quick("topics", "list", "--data-dir", "/nowhere")).failed(2)

    assert "both given" in failed.err


@pytest.mark.parametrize(
    "args", ["nonsense", "topics nonsense", "topics list extra", "topics list --nonsense", "--dsn"]
)
async def test_usage_error_ends_with_2(nowhere: Cli, args: str) -> None:
    """The remedy points to the help."""
    failed = (await nowhere.quick(*args.split())).failed(2)

    assert re.search(r"^remedy: see postbus( topics( list)?)? --help$", failed.err, re.MULTILINE)


async def test_usage_error_can_be_json(nowhere: Cli) -> None:
    """A usage error is JSON too, if that was requested."""
    assert (await nowhere.quick("topics", "nonsense", "--json")).failed(2).error["code"] == "usage"


async def test_help_names_all_exit_codes(nowhere: Cli) -> None:
    """The help of the program explains each exit code."""
    shown = (await nowhere.quick("--help")).done().out

    plain = re.sub(r"\s+", " ", shown)
    assert all(f"{code} {meaning}" in plain for code, meaning in EXIT_CODES.items())


@pytest.mark.parametrize("args", ["", "topics", "dead-letters", "up --help", "bench --help"])
async def test_help_is_shown_without_a_command(nowhere: Cli, args: str) -> None:
    """Asking for help is no error."""
    assert "Usage: postbus" in (await nowhere.quick(*args.split())).done().out


async def test_dsn_named_like_a_command_is_no_command(nowhere: Cli) -> None:
    """The command is the first word that is neither an option nor the value of one."""
    assert "postbus" in (await nowhere.quick("--dsn", "topics", "version", "--json")).done().json


async def test_command_imports_only_what_it_needs() -> None:
    """Importing the other commands would double the start time."""
    looked_at = "import sys; from postbus.cli._app import run; run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"

    ended = await finish(await start("topics", "list", "--help", program=(sys.executable, "-c", looked_at)))

    assert set(re.findall(r"postbus\.cli\.([a-z]\w+)", ended.done().err)) == {"topics"}


async def test_version_is_shown_by_option_and_command(nowhere: Cli) -> None:
    """The command has a JSON form too."""
    option, command = await nowhere.quick("--version"), await nowhere.quick("version", "--json")

    assert option.done().out == f"postbus {postbus.__version__}\n"
    assert command.done().json["postbus"] == postbus.__version__


def test_every_error_has_an_exit_code() -> None:
    """Each error of Postbus ends with a documented code."""

    def all_errors(root: type[PostbusError]) -> list[type[PostbusError]]:
        return [root, *(error for sub in root.__subclasses__() for error in all_errors(sub))]

    assert all(exit_code_of(error("x")) in EXIT_CODES for error in all_errors(PostbusError))
    assert exit_code_of(EmbeddedError("x")) == 5


async def test_missing_typer_is_reported_in_one_line(tmp_path: Path) -> None:
    """The line says how to install the extra."""
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(\"No module named 'typer'\", name='typer')")
    program = (sys.executable, "-c", "from postbus.cli import main; main()")
    process = await start(program=program, env={"PYTHONPATH": str(tmp_path)})

    failed = (await finish(process)).failed(2)

    assert failed.err == 'error: typer is not installed: pip install "postbus[cli]"\n'


async def test_embedded_server_is_used_without_a_dsn(folder: Path) -> None:
    """Commands that name the same folder share its server, whose data stays when they end."""
    published = await run("publish", "jobs", "hello", "--data-dir", str(folder))
    # A folder on the command line precedes a DSN in the environment.
    shown = await run("tail", "jobs", "--once", "--data-dir", str(folder), POSTBUS_DSN=NOWHERE)
    examined = await run("doctor", POSTBUS_DATA_DIR=str(folder))

    assert published.done().out == "1\n"
    assert shown.done().out.endswith("hello\n")
    assert examined.done().out.split()[:2] == ["ok", "connection"]


async def test_embedded_server_refuses_a_foreign_folder(tmp_path: Path) -> None:
    """A folder that is not ours ends the command with 5."""
    (tmp_path / "precious").touch()

    failed = await run("topics", "list", "--data-dir", str(tmp_path), "--json")

    assert failed.failed(5).error["code"] == "PB506"


async def test_migrate_lists_applied_migrations(empty_dsn: str, tmp_path: Path) -> None:
    """A second run says that nothing is left to do."""
    cli = Cli(empty_dsn, tmp_path)

    first, second = await cli("migrate"), await cli.quick("migrate", "--json")

    assert "applied migration 0001_schema\n" in first.done().out
    assert second.done().json["applied"] == []


async def test_migrate_refuses_a_newer_schema(cli: Cli, conn: Any) -> None:
    """A database that a newer version migrated is left alone."""
    await conn.execute("insert into postbus.migration (number, name, breaking) values (999, 'later', true)")

    (await cli.quick("migrate")).failed(6)


async def test_migrate_print_writes_a_complete_script(empty_dsn: str, tmp_path: Path) -> None:
    """--print needs no database, and its script creates the schema."""
    printed = (await run("migrate", "--print", POSTBUS_DSN=NOWHERE)).done().out

    conn: Any = await asyncpg.connect(empty_dsn)
    try:
        await conn.execute(printed)
        state = await migrator.read_state(conn)
    finally:
        await conn.close()
    assert state is not None
    assert state.is_current


async def test_terminal_without_utf8_gets_escapes() -> None:
    """Characters that stdout cannot show are escaped."""
    examined = await run("doctor", POSTBUS_DSN=NOWHERE, PYTHONIOENCODING="ascii")

    assert "\\u2192 check that the server runs" in examined.failed(1).out


async def test_closed_streams_are_no_error(cli: Cli, bus: Bus) -> None:
    """A closed stdin is empty, and output to a closed stdout or stderr is discarded."""
    (await cli.redirected("<&-", "publish", "jobs")).done()
    (await cli.redirected(">&-", "publish", "jobs", "x")).done()
    assert [row.payload for row in await bus.admin.messages("jobs")] == [b"", b"x"]

    (await cli.redirected("<&- >&- 2>&-", "consume", "jobs", "--max", "2")).done()
    assert await bus.admin.messages("jobs") == []

    quiet = (await cli.redirected("2>&-", "topics", "show", "gone")).failed(3)
    assert quiet.out == ""
    assert "not confirmed" in (await cli.redirected("<&-", "topics", "delete", "jobs")).failed(4).err


async def test_full_disk_is_reported(cli: Cli, bus: Bus) -> None:
    """The error says that the output cannot be written."""
    await bus.send("jobs", 1)
    full = (await cli.redirected(">/dev/full", "topics", "list")).failed(1)
    assert full.err == "error: cannot write: No space left on device\nremedy: free some space, or write elsewhere\n"
