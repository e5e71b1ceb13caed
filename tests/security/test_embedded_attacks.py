"""Attacks on the embedded server of root: reaching it from elsewhere, and abusing root by links in its folders."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from embedded.conftest import open_folder, plain_environment
from embedded.helpers import processes_of, query
from postbus._embedded.supervisor import folders, locks
from postbus._embedded.supervisor.home import Home, read_state
from postbus.embedded import EmbeddedPostgres
from postbus.errors import EmbeddedError

__all__ = ["plain_environment"]  # a fixture
pytestmark = [
    pytest.mark.attack("the embedded server's folders"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away"),
]
NOBODY = 65534


@pytest.fixture(scope="module")
def base(plain_environment: None) -> Iterator[Path]:
    path = open_folder()
    yield path
    assert not processes_of(path), "processes remain"
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def server(base: Path) -> Iterator[EmbeddedPostgres]:
    """Start root's server in a new folder, under an account that other processes use too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSTBUS_PG_USER", "nobody")
        with EmbeddedPostgres.start(base / "server") as postgres:
            yield postgres


@pytest.fixture
def place(base: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Make a folder of root that everybody may enter, for one attack."""
    path = base / f"attack-{abs(hash(request.node.name))}"
    path.mkdir()
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def victim(place: Path) -> Path:
    """Make a folder of root, which must stay root's."""
    path = place / "victim"
    path.mkdir(0o750)
    (path / "postmaster.pid").write_text("not yours")
    (path / "PG_VERSION").write_text("18 and a secret")
    return path


def facts(path: Path) -> list[tuple[str, int, int, int, str]]:
    """Return everything that an attack could change."""
    return [
        (
            one.name,
            one.lstat().st_uid,
            one.lstat().st_gid,
            one.lstat().st_mode,
            one.read_text() if one.is_file() else "",
        )
        for one in (path, *sorted(path.rglob("*")))
    ]


def as_nobody(script: str, *args: str | Path, group: int = NOBODY) -> subprocess.CompletedProcess[str]:
    """Run Python as the account of the server, in that account's own group."""
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None:
        pytest.skip("other accounts reach no Python here")
    return subprocess.run(
        [python, "-c", script, *map(str, args)], user=NOBODY, group=group, extra_groups=[], cwd="/", env={},
        check=False, capture_output=True, text=True,
    )  # fmt: skip


CONNECT = """
import socket, struct, sys
found = socket.socket(socket.AF_UNIX)
found.connect(sys.argv[1] + "/.s.PGSQL.5432")
start = b"user\\0postgres\\0database\\0postgres\\0\\0"
found.sendall(struct.pack("!ii", 8 + len(start), 196608) + start)
answer = found.recv(100)
sys.exit(0 if answer[:1] == b"R" and answer[5:9] == bytes(4) else 7)
"""
TRIES = {
    "connect": CONNECT,
    "list the home": "import os, sys; os.listdir(sys.argv[2])",
    "list the data": "import os, sys; os.listdir(sys.argv[2] + '/pgdata')",
    "read the data": "import sys; open(sys.argv[2] + '/pgdata/global/pg_control', 'rb').read()",
    "change who may connect": "import sys; open(sys.argv[2] + '/pgdata/pg_hba.conf', 'a').write('local all all trust')",
    "read who may connect": "import sys; open(sys.argv[2] + '/hba_file.conf').read()",
    "read the state": "import sys; open(sys.argv[2] + '/server.json').read()",
    "read the log": "import sys; open(sys.argv[2] + '/postbus-server.log').read()",
    "take a lock": "import sys; open(sys.argv[2] + '/users.lock', 'r+')",
    "enter by /proc": "import os, sys; os.listdir('/proc/' + sys.argv[3] + '/cwd')",
    "its files": "import sys; open('/proc/' + sys.argv[3] + '/fd/0')",
    "its environment": "import sys; open('/proc/' + sys.argv[3] + '/environ').read()",
    "its memory": "import sys; open('/proc/' + sys.argv[3] + '/mem', 'rb')",
    "replace the socket": "import os, sys; os.rename(sys.argv[1] + '/.s.PGSQL.5432', sys.argv[1] + '/x')",
    "make a file at home": "import sys; open(sys.argv[2] + '/pgdata.draft', 'w')",
    "its program": "import os, sys; os.readlink('/proc/' + sys.argv[3] + '/exe')",
}
WORKING = ("list the data", "read the data", "read who may connect", "its files", "its environment")


@pytest.mark.parametrize("what", TRIES)
def test_other_processes_of_the_servers_account_get_nothing(what: str, server: EmbeddedPostgres) -> None:
    """Another process of `nobody` can neither connect nor read, because only this server is in the group."""
    state = read_state(Home(server.data_dir))
    assert state is not None
    tried = as_nobody(TRIES[what], state.socket_dir, server.data_dir, str(state.pid))
    assert tried.returncode != 0
    assert "Permission" in tried.stderr, tried


@pytest.mark.control
def test_attacks_on_the_server_would_work_in_its_group(server: EmbeddedPostgres) -> None:
    """In the server's own group the same account connects and reads."""
    state = read_state(Home(server.data_dir))
    assert state is not None
    group = server.data_dir.stat().st_gid
    done = [as_nobody(TRIES[what], state.socket_dir, server.data_dir, str(state.pid), group=group) for what in WORKING]
    assert [one.returncode for one in done] == [0] * len(done), done


def test_server_authenticates_connections(server: EmbeddedPostgres) -> None:
    """A process that reached the socket would be refused: only root connects."""
    assert query(server, "select count(*) from pg_hba_file_rules where auth_method <> 'peer'") == 0
    state = read_state(Home(server.data_dir))
    assert state is not None
    found = as_nobody(CONNECT, state.socket_dir, group=server.data_dir.stat().st_gid)
    assert found.returncode == 7, found


@pytest.mark.control
def test_root_connects_as_every_role(server: EmbeddedPostgres) -> None:
    """A request for another role of the database is accepted as before."""
    query(server, 'create role "an app" login')

    async def ask() -> str:
        connection = await asyncpg.connect(server.dsn(), user="an app")
        try:
            return str(await connection.fetchval("select current_user"))
        finally:
            await connection.close()

    assert asyncio.run(ask()) == "an app"


def plant_file(name: str) -> Callable[[Path, Path], None]:
    return lambda home, victim: (home / name).symlink_to(victim / "postmaster.pid")


def plant_folder(name: str) -> Callable[[Path, Path], None]:
    return lambda home, victim: (home / name).symlink_to(victim)


def plant_pipe(name: str) -> Callable[[Path, Path], None]:
    return lambda home, victim: os.mkfifo(home / name)


def plant_hard(name: str) -> Callable[[Path, Path], None]:
    return lambda home, victim: (home / name).hardlink_to(victim / "postmaster.pid")


PLANTED = {
    **{f"{name} is a link": plant_file(name) for name in (
        "start.lock", "users.lock", "supervisor.lock", "server.lock", "closing.lock", "server.json", "server.draft",
        "postbus-server.log", "postbus-server.log.1", "hba_file.conf", "hba_file.draft",
    )},
    **{f"{name} is a link to a folder": plant_folder(name) for name in ("pgdata", "pgdata.draft", "run")},
    **{f"{name} is a pipe": plant_pipe(name) for name in ("start.lock", "server.json", "postbus-server.log")},
    **{f"{name} is a second name": plant_hard(name) for name in ("start.lock", "users.lock", "supervisor.lock")},
}  # fmt: skip


@pytest.mark.parametrize("planted", PLANTED)
def test_link_in_a_users_folder_leads_root_nowhere(planted: str, place: Path, victim: Path) -> None:
    """Root keeps a server in a user's folder with planted links: their targets stay as they are."""
    home = place / "home"
    home.mkdir(0o700)
    (home / "postbus.json").write_text("{}")
    PLANTED[planted](home, victim)
    for one in (home, *home.iterdir()):
        os.chown(one, NOBODY, NOBODY, follow_symlinks=False) if not planted.endswith("second name") else None
    os.chown(home, NOBODY, NOBODY)
    before = facts(victim)
    refused = ""
    try:
        EmbeddedPostgres.start(home, bin_dir=broken_binaries(place), timeout=5).close()
    except EmbeddedError as error:
        refused = str(error)
    assert facts(victim) == before
    assert refused
    assert "secret" not in refused
    assert "not yours" not in refused


def broken_binaries(place: Path) -> Path:
    """Make programs that end at once: the test observes what root does around them."""
    folder = place / "bin"
    folder.mkdir()
    for name, script in {"postgres": "echo 'postgres (PostgreSQL) 18.0'", "initdb": "exit 1"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize("swap", ["link", "folder"])
@pytest.mark.parametrize("maker", ["make_folder", "make_folders"])
def test_folder_swapped_while_it_is_made_is_not_given_away(
    swap: str, maker: str, place: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attacker replaces the folder between its creation and the change of owner."""
    mkdir = Path.mkdir

    def raced(self: Path, mode: int = 0o777, *args: bool) -> None:
        mkdir(self, mode, *args)
        self.rename(self.with_name("away"))
        if swap == "link":
            self.symlink_to(victim)
        else:
            mkdir(self, 0o755)
            os.chown(self, NOBODY, NOBODY)

    before = facts(victim)
    monkeypatch.setattr(Path, "mkdir", raced)
    with pytest.raises(OSError):
        if maker == "make_folder":
            folders.make_folder(place / "new", 0o711, owner=(NOBODY, NOBODY))
        else:
            folders.make_folders(place / "new", 0o711)
    assert facts(victim) == before


def test_link_in_place_of_the_home_is_not_given_away(place: Path, victim: Path) -> None:
    """Closing a folder to others does not affect the target of a link."""
    (place / "home").symlink_to(victim)
    before = facts(victim)
    with pytest.raises(OSError):
        folders.close_to_others(place / "home", 60_600)
    assert facts(victim) == before


WAYS: dict[str, Callable[[Path], Path]] = {}


def way(name: str) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    def keep(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
        WAYS[name] = make
        return make

    return keep


@way("the folder above is a user's")
def _(place: Path) -> Path:
    (place / "user").mkdir(0o755)
    os.chown(place / "user", NOBODY, NOBODY)
    return place / "user" / "data"


@way("a folder further above is a user's")
def _(place: Path) -> Path:
    (place / "user").mkdir(0o755)
    (place / "user" / "root").mkdir(0o755)
    os.chown(place / "user", NOBODY, NOBODY)
    return place / "user" / "root" / "data"


@way("everybody writes to the folder above")
def _(place: Path) -> Path:
    (place / "open").mkdir()
    (place / "open").chmod(0o777)
    return place / "open" / "data"


@way("a group writes to the folder above")
def _(place: Path) -> Path:
    (place / "open").mkdir()
    os.chown(place / "open", 0, NOBODY)
    (place / "open").chmod(0o775)
    return place / "open" / "data"


@way("everybody writes to the folder")
def _(place: Path) -> Path:
    (place / "data").mkdir()
    (place / "data").chmod(0o777)
    return place / "data"


@way("everybody writes to the folder, and it is sticky")
def _(place: Path) -> Path:
    (place / "data").mkdir()
    (place / "data").chmod(0o1777)
    return place / "data"


@way("a user's folder in a folder for all")
def _(place: Path) -> Path:
    (place / "tmp").mkdir()
    (place / "tmp").chmod(0o1777)
    (place / "tmp" / "data").mkdir(0o700)
    os.chown(place / "tmp" / "data", NOBODY, NOBODY)
    return place / "tmp" / "data"


@way("the way leads by a user's link")
def _(place: Path) -> Path:
    (place / "user").mkdir(0o755)
    (place / "user" / "real").mkdir(0o755)
    (place / "link").symlink_to(place / "user" / "real")
    os.chown(place / "user", NOBODY, NOBODY)
    return place / "link" / "data"


@pytest.mark.parametrize("name", WAYS)
def test_root_keeps_no_server_in_folders_that_others_may_replace(name: str, place: Path) -> None:
    """The error names the folder that others may change, and what to do."""
    folder = WAYS[name](place)
    with pytest.raises(EmbeddedError, match="others may change what is in") as caught:
        EmbeddedPostgres.start(folder, bin_dir=broken_binaries(place), timeout=5)
    assert "only root may write" in caught.value.remedy
    assert not (folder / "postbus.json").exists()


def test_programs_are_not_run_from_a_cache_that_others_may_change(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied programs run only from a folder of root."""
    hidden = place / "hidden"
    hidden.mkdir(0o700)
    binaries = broken_binaries(hidden)
    (place / "cache").mkdir()
    (place / "cache").chmod(0o777)
    monkeypatch.setenv("POSTBUS_CACHE_DIR", str(place / "cache"))
    with pytest.raises(EmbeddedError, match="others than root may change what is in"):
        EmbeddedPostgres.start(place / "data", bin_dir=binaries, timeout=5)
    assert list((place / "cache").iterdir()) == []


@pytest.mark.parametrize("content", ["18\x1b[2J", "root:x:0:0\n", "", "9" * 5000])
def test_bad_version_file_is_refused(content: str, place: Path) -> None:
    """Its content is shown in a form that is safe for a terminal, or not at all."""
    home = place / "home"
    (home / "pgdata").mkdir(parents=True)
    (home / "postbus.json").write_text("{}")
    (home / "pgdata" / "PG_VERSION").write_text(content)
    for one in (home, home / "pgdata", home / "pgdata" / "PG_VERSION"):
        os.chown(one, NOBODY, NOBODY)
    with pytest.raises(EmbeddedError, match="holds data of PostgreSQL") as caught:
        EmbeddedPostgres.start(home, bin_dir=broken_binaries(place), timeout=5)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 300


@pytest.mark.control
def test_data_of_earlier_releases_keeps_working(base: Path, plain_environment: None) -> None:
    """A folder of an earlier release, for the account `nobody`, is taken over with its data, and closed to others."""
    home = base / "old"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSTBUS_PG_USER", "nobody")
        with EmbeddedPostgres.start(home) as postgres:
            query(postgres, "create table kept as select 42 as answer")
    for one in (home / "pgdata", *(home / "pgdata").rglob("*"), home / "run"):
        os.chown(one, NOBODY, NOBODY, follow_symlinks=False)
    (home / "run").chmod(0o700)
    os.chown(home, 0, 0)
    home.chmod(0o711)
    for name in ("hba_file.conf", "ident_file.conf"):
        (home / name).unlink()

    with EmbeddedPostgres.start(home) as postgres:
        assert query(postgres, "select answer from kept") == 42
        state = read_state(Home(home))
        assert state is not None
        assert "Permission" in as_nobody(CONNECT, state.socket_dir).stderr
    assert stat.S_IMODE(home.stat().st_mode) == 0o710


def test_lock_must_be_a_plain_file(place: Path) -> None:
    """A folder, a pipe or a device is refused."""
    (place / "x.lock").mkdir()
    os.mkfifo(place / "y.lock")
    for name in ("x.lock", "y.lock"):
        with pytest.raises(OSError):
            locks.open_ours(place / name, os.O_RDWR)
