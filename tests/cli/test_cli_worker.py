"""postbus worker"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.helpers import Cli, deliver, finish
from postbus import Bus
from postbus.cli._exits import CommandError
from postbus.cli.worker import load_bus

NOWHERE = "postgresql://postgres@127.0.0.1:1/postgres"

SHOP = """
from postbus import Bus

shop = bus = Bus.open()
number = 7

@bus.subscribe("jobs")
async def handle(payload):
    print("handling", payload, flush=True)
    if payload == "forever":
        import asyncio
        await asyncio.Event().wait()
"""


@pytest.fixture
def shop(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a folder current, from which modules are imported for the length of a test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("POSTBUS_DSN", NOWHERE)
    yield tmp_path
    sys.modules.pop("it", None)


async def started(cli: Cli, *args: str) -> asyncio.subprocess.Process:
    process = await cli.start("worker", *args)
    assert process.stdout is not None
    assert (await process.stdout.readline()).startswith(b"handling")
    return process


@pytest.mark.parametrize(
    ("option", "module"), [("asyncio", "asyncio.unix_events"), ("auto", "uvloop"), ("uvloop", "uvloop")]
)
async def test_event_loop_can_be_chosen(cli: Cli, bus: Bus, tmp_path: Path, option: str, module: str) -> None:
    """The default is uvloop, if it is installed."""
    telling = SHOP.replace("payload, flush", "__import__('asyncio').get_running_loop().__class__.__module__, flush")
    (tmp_path / "shop.py").write_text(telling)
    await bus.send("jobs", "one")

    process = await cli.start("worker", "shop", "--loop", option)
    assert process.stdout is not None
    assert (await process.stdout.readline()).split() == [b"handling", module.encode()]
    process.send_signal(signal.SIGTERM)
    (await finish(process)).done()


async def test_module_is_imported_within_the_event_loop(cli: Cli, bus: Bus, tmp_path: Path) -> None:
    """An object that it creates on import belongs to the loop that its handlers run in."""
    needing = SHOP.replace("number = 7", "from asyncio import get_running_loop\nloop = get_running_loop()")
    (tmp_path / "shop.py").write_text(needing.replace("payload, flush", "loop is get_running_loop(), flush"))
    await bus.send("jobs", "one")

    process = await cli.start("worker", "shop")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"handling True\n"
    process.send_signal(signal.SIGTERM)
    (await finish(process)).done()


async def test_missing_event_loop_is_reported(cli: Cli, shop: None, tmp_path: Path) -> None:
    """The error says what to install; by default Python's own loop is used then."""
    (tmp_path / "uvloop.py").write_text("raise ModuleNotFoundError")
    cli.env["PYTHONPATH"] = str(tmp_path)

    failed = (await cli("worker", "shop", "--loop", "uvloop")).failed(4)

    assert "error: uvloop is not installed" in failed.err
    assert "pip install uvloop" in failed.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_first_signal_drains_the_worker(cli: Cli, bus: Bus, shop: None, number: signal.Signals) -> None:
    """It runs the handlers of a module in the current directory, and a signal ends it with 0."""
    await bus.send("jobs", "one")
    process = await started(cli, "shop", "--name", "me")

    process.send_signal(number)

    ended = (await finish(process)).done()
    assert re.search(r"INFO    worker.started worker=me:\w+ topics=\['jobs'\]", ended.err)
    assert "worker.stopped worker=me:" in ended.err
    assert (await bus.admin.topic("jobs")).waiting == 0


async def test_second_signal_aborts_the_worker(cli: Cli, bus: Bus, shop: None) -> None:
    """Running handlers are cancelled. The exit code is 130."""
    await bus.send("jobs", "forever")
    process = await started(cli, "shop:shop")

    await deliver(process, signal.SIGTERM)
    await deliver(process, signal.SIGTERM)

    (await finish(process)).failed(130)


@pytest.mark.parametrize("stop", ["second signal", "drain timeout"])
async def test_aborted_worker_ends_its_handler_threads(cli: Cli, bus: Bus, tmp_path: Path, stop: str) -> None:
    """A thread cannot be cancelled, and must not go on while another worker has its message. The exit code is 130."""
    sync = SHOP.replace("async def", "def").replace("import asyncio", "import time")
    sync = sync.replace("await asyncio.Event().wait()", "time.sleep(15)\n        print('returned', flush=True)")
    (tmp_path / "shop.py").write_text(sync)
    await bus.send("jobs", "forever")
    process = await started(cli, "shop", "--drain-timeout", "100ms" if stop == "drain timeout" else "1h")

    await deliver(process, signal.SIGTERM)
    if stop == "second signal":
        await deliver(process, signal.SIGTERM)

    ended = (await finish(process)).failed(130)
    assert "worker.stopped" in ended.err
    assert "returned" not in ended.out


async def test_logs_can_be_json(cli: Cli, bus: Bus, shop: None) -> None:
    """Each log event is an object with its name and fields."""
    await bus.send("jobs", "one")
    process = await started(cli, "shop:bus", "--log-format", "json")

    process.send_signal(signal.SIGTERM)

    events = [json.loads(line) for line in (await finish(process)).done().err.splitlines()]
    assert [one["event"] for one in events] == ["worker.started", "worker.stopping", "worker.stopped"]
    assert (events[0]["topics"], events[0]["level"]) == (["jobs"], "info")


async def test_log_level_can_be_set(cli: Cli, bus: Bus, shop: None) -> None:
    """Nothing below the chosen level is written."""
    await bus.send("jobs", "one")
    process = await started(cli, "shop", "--log-level", "warning")

    process.send_signal(signal.SIGTERM)

    assert (await finish(process)).done().err == ""


async def test_dsn_option_applies_to_the_module(cli: Cli, bus: Bus, shop: None, dsn: str) -> None:
    """--dsn says which database the module's `Bus.open()` opens."""
    await bus.send("jobs", "one")
    cli.env["POSTBUS_DSN"] = "postgresql://nobody@127.0.0.1:1/nowhere"
    process = await started(cli, "shop", "--dsn", dsn)

    process.send_signal(signal.SIGTERM)

    (await finish(process)).done()


@pytest.mark.parametrize(
    ("source", "target", "code", "told"),
    [
        (None, "nosuch", 2, "there is no module 'nosuch'"),
        (None, "nosuch.deeper:bus", 2, "there is no module 'nosuch'"),
        ("", "it", 2, "it has no 'bus'"),
        (SHOP, "it:number", 2, "it:number is not a Bus but of type int"),
        (SHOP, "it:nothing", 2, "name the bus: it:shop or it:bus"),
        (SHOP, "it.py:bus", 2, "postbus worker it:bus"),
        ("import nosuch", "it", 1, "importing it failed: ModuleNotFoundError: No module named 'nosuch'"),
        ("def f():\n    return 1 / 0\nf()\n", "it", 1, "ZeroDivisionError: division by zero"),
        ("def f(:\n", "it", 1, "importing it failed: SyntaxError"),
        ("raise SystemExit('no config')", "it", 1, "no config"),
    ],
)
def test_unloadable_module_is_reported(here: Path, source: str | None, target: str, code: int, told: str) -> None:
    """Each reason is given in words, with a suitable exit code."""
    if source is not None:
        (here / "it.py").write_text(source)

    with pytest.raises(CommandError) as failed:
        load_bus(target)

    assert failed.value.exit_code == code
    assert told in f"{failed.value.message} {failed.value.remedy}"


@pytest.mark.parametrize(
    ("source", "target", "code", "told"),
    [
        (None, "nosuch", 2, "there is no module 'nosuch'"),
        ("1 / 0", "it", 1, "ZeroDivisionError: division by zero"),
        ("from postbus import Bus\nbus = Bus.open()\n", "it", 4, "no handler is registered"),
        (
            "from postbus import Bus\nbus = Bus.open()\nbus.subscribe('a!')(print)\n",
            "it",
            4,
            "bad topic name",
        ),
        (SHOP.replace("open()", f"open('{NOWHERE}')"), "it", 5, "cannot be reached"),
        (SHOP.replace("open()", f"open('{NOWHERE}')"), "it --dsn postgresql:///y", 2, "--dsn has no effect"),
        (SHOP, "it --log-level loud", 2, "--log-level"),
    ],
)
async def test_worker_mistakes_are_reported(cli: Cli, source: str | None, target: str, code: int, told: str) -> None:
    """They are reported in words, without a traceback of ours."""
    if source is not None:
        (cli.cwd / "it.py").write_text(source)

    failed = await cli("worker", *target.split())

    assert told in failed.failed(code).err


async def test_failed_import_names_file_and_line(cli: Cli) -> None:
    """The remedy points into the user's code."""
    (cli.cwd / "it.py").write_text("def f():\n    return 1 / 0\nf()\n")

    failed = await cli("worker", "it", "--json")

    assert failed.failed(1).error["remedy"] == f"see {cli.cwd / 'it.py'}, line 2"


async def test_bug_ends_the_worker_with_a_traceback(cli: Cli, bus: Bus, dsn: str, shop: None) -> None:
    """A worker that cannot go on because of a bug logs it, and ends with 1."""
    (cli.cwd / "it.py").write_text(
        SHOP + "\nfrom postbus._maintenance.heartbeat import ProcessHeartbeat\n"
        "async def tick(self):\n    raise TypeError('a bug')\nProcessHeartbeat.tick = tick\n"
    )

    failed = await cli("worker", "it")

    assert failed.code == 1
    assert "TypeError: a bug" in failed.err


async def test_group_worker_on_a_queue_ends_with_a_remedy(cli: Cli, bus: Bus, tmp_path: Path) -> None:
    """A worker with a group for a topic that is still a QUEUE names the command to run, without a traceback."""
    (tmp_path / "shop.py").write_text(SHOP.replace('"jobs")', '"jobs", group="mail")'))
    await bus.admin.create_topic("jobs")
    await bus.send("jobs", "one")

    told = (await cli("worker", "shop")).failed(4)

    assert "postbus topics migrate jobs --to PUB_SUB --group mail" in told.err
