"""The process that owns an embedded PostgreSQL server and ends it with its last user.

`embedded.py` runs this file by its path, with a plan on stdin. It imports the standard library only:
a keeper starts in milliseconds and stays small, whatever the rest of the package imports.

Every lock is an flock on a file in the home folder, so the kernel releases it when its holder dies:

    start    a starter, from looking at the folder until the server answers
    users    shared by every user while it uses the server; exclusive by the keeper once nobody is
             left, until the keeper has ended
    keeper   the keeper, for its life
    server   the keeper and, by inheritance, every process of PostgreSQL: when it is free, none of them
             is alive, whatever a pid file says
    closing  a leaving user, while it looks whether others remain

They are taken in this order: start, users, keeper, server. Nobody waits while holding closing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SHARED = fcntl.LOCK_SH
EXCLUSIVE = fcntl.LOCK_EX

POLL = 0.01
STOP_TIMEOUT = 20.0  # a fast shutdown that takes longer becomes an immediate one
PREDECESSOR_TIMEOUT = 30.0  # the time that processes of a killed server have to end

LOCAL_BUS_SETTINGS = {
    "fsync": "on",
    "listen_addresses": "",
    "port": "5432",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

FIND_REFUSED = """
for path; do
    if [ -d "$path" ]; then [ -x "$path" ]; else [ -r "$path" ]; fi || { printf %s "$path"; exit; }
done
"""


class KeeperError(Exception):
    """Why the keeper gives up. The starter reads it in the log."""


@dataclass(frozen=True)
class Home:
    """The folder that belongs to one embedded server, and what is where in it."""

    path: Path

    @property
    def marker(self) -> Path:
        """Says that the folder is ours."""
        return self.path / "postbus.json"

    @property
    def pgdata(self) -> Path:
        return self.path / "pgdata"

    @property
    def log(self) -> Path:
        return self.path / "postbus-server.log"

    @property
    def state(self) -> Path:
        """Written by the keeper when its server is ready; without a living keeper it means nothing."""
        return self.path / "server.json"

    def lock(self, name: str) -> Path:
        return self.path / f"{name}.lock"


@dataclass(frozen=True)
class Account:
    """Whom PostgreSQL runs as when root starts it."""

    name: str
    uid: int
    gid: int
    groups: list[int]

    @classmethod
    def find(cls, name_or_uid: str) -> Account | None:
        try:
            entry = pwd.getpwuid(int(name_or_uid)) if name_or_uid.isdecimal() else pwd.getpwnam(name_or_uid)
        except KeyError:
            return None
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid, groups)

    def first_refused(self, paths: Iterable[Path]) -> str:
        """The first folder that this account may not enter, or file that it may not read.

        Asked of the kernel as that user, since permissions are more than the bits of a mode.
        """
        return subprocess.run(
            ["/bin/sh", "-c", FIND_REFUSED, "sh", *map(str, paths)],
            check=False,
            user=self.uid,
            group=self.gid,
            extra_groups=self.groups,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        ).stdout


@dataclass(frozen=True)
class Plan:
    """What a starter asks of the keeper."""

    home: str
    bin_dir: str
    version: int
    socket_dir: str
    account: Account | None
    settings: Mapping[str, str]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        fields = json.loads(text)
        account = fields.pop("account")
        return cls(account=Account(**account) if account else None, **fields)


@dataclass(frozen=True)
class State:
    """A server that has become ready."""

    pid: int
    keeper: int
    version: int
    socket_dir: str
    settings: Mapping[str, str]


class Lock:
    """One holder's claim on a lock file."""

    def __init__(self, path: Path) -> None:
        self.fd = open_ours(path, os.O_RDWR)

    def try_acquire(self, mode: int) -> bool:
        try:
            fcntl.flock(self.fd, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def acquire(self, mode: int, deadline: float) -> bool:
        """False if others did not release it before `deadline`, on the monotonic clock."""
        while not self.try_acquire(mode):
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL)
        return True

    def wait(self, mode: int) -> None:
        fcntl.flock(self.fd, mode)

    def release(self) -> None:
        """Unlock for everybody who shares this claim.

        A process that was forked meanwhile has a copy of the descriptor, and must not keep what it never
        asked for.
        """
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        os.close(self.fd)

    def leave(self) -> None:
        """Drop this process's part of the claim: a forked child that shares it still holds it."""
        os.close(self.fd)


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock exclusively."""
    if not path.exists():
        return False
    probe = Lock(path)
    free = probe.try_acquire(SHARED)
    probe.release()
    return not free


def open_ours(path: Path, flags: int) -> int:
    """Open a file in a folder of ours; a file that root creates gets the owner of the folder.

    The folder may belong to a less trusted user than we are, so links are not followed.
    """
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return os.open(path, flags | os.O_NOFOLLOW)
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.fchown(fd, owner.st_uid, owner.st_gid)
    return fd


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a power failure."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def postmaster_status(home: Home) -> tuple[int, str]:
    """The pid and the status ("starting", "ready", "stopping") that PostgreSQL writes down."""
    try:
        lines = (home.pgdata / "postmaster.pid").read_text().splitlines()
        return int(lines[0]), lines[7].strip()
    except (FileNotFoundError, IndexError, ValueError):
        return 0, ""


def has_users(home: Home) -> bool:
    """Whether anybody shares the users' lock; not so while the keeper has it for itself."""
    turn, users = Lock(home.lock("closing")), Lock(home.lock("users"))
    # One at a time: two users that leave together would each take the other's look for a user.
    turn.wait(EXCLUSIVE)
    try:
        return not users.try_acquire(EXCLUSIVE) and users.try_acquire(SHARED)
    finally:
        users.release()
        turn.release()


def read_state(home: Home) -> State | None:
    try:
        return State(**json.loads(home.state.read_text()))
    except FileNotFoundError:
        return None


def answers(home: Home, state: State) -> bool:
    """Whether it takes connections: a server that was killed leaves its files behind as they were."""
    if postmaster_status(home) != (state.pid, "ready"):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(f"{state.socket_dir}/.s.PGSQL.5432")
        except OSError:
            return False
    return True


class Keeper:
    """Makes the cluster if there is none, runs the server, and stops it when nobody uses it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._home = Home(Path(plan.home))
        self._server_lock = Lock(self._home.lock("server"))
        self._ended = threading.Event()

    def run(self) -> None:
        self._wait_for_predecessor()
        if not self._home.pgdata.exists():
            self._make_cluster()
        server = self._start_server()
        threading.Thread(target=self._stop_when_unused, args=(server,), daemon=True).start()
        if self._becomes_ready(server):
            self._publish_state(server.pid)
        code = server.wait()
        self._ended.set()
        self._tidy()
        if code != 0:
            raise KeeperError(f"PostgreSQL ended with status {code}")

    def _wait_for_predecessor(self) -> None:
        if not self._server_lock.acquire(EXCLUSIVE, time.monotonic() + PREDECESSOR_TIMEOUT):
            pid, _ = postmaster_status(self._home)
            raise KeeperError(f"processes of an earlier server (pid {pid}) are still alive: end them")
        # Nothing of the earlier server is alive, so a pid file is left from a crash. PostgreSQL would
        # take it for valid if the pid belongs to another process by now.
        (self._home.pgdata / "postmaster.pid").unlink(missing_ok=True)

    def _make_cluster(self) -> None:
        """Build it beside its place and rename: a cluster in its place is always complete."""
        draft = self._home.path / "pgdata.draft"
        if draft.exists():
            shutil.rmtree(draft)
        draft.mkdir(0o700)
        if self._plan.account:
            os.chown(draft, self._plan.account.uid, self._plan.account.gid)
        initdb = self._spawn("initdb", *self._initdb_options(draft), death_signal=signal.SIGKILL)
        if code := initdb.wait():
            shutil.rmtree(draft)
            raise KeeperError(f"initdb ended with status {code}")
        draft.rename(self._home.pgdata)
        sync_folder(self._home.path)

    def _initdb_options(self, folder: Path) -> list[str]:
        options = ["-D", str(folder), "-U", "postgres", "--encoding=UTF8", "--locale=C"]
        if self._plan.version >= 17:
            options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        # Only the server's account and root can reach the socket, see _private_folder in embedded.py.
        return [*options, "--auth-local=trust", "--auth-host=reject"]

    def _start_server(self) -> subprocess.Popen[bytes]:
        settings = {**LOCAL_BUS_SETTINGS, **self._plan.settings}
        quoted = self._plan.socket_dir.replace('"', '""')
        settings["unix_socket_directories"] = f'"{quoted}"'
        if "default_toast_compression" not in settings and self._has_lz4():
            settings["default_toast_compression"] = "lz4"
        # An immediate shutdown, since nobody would be left to end one that hangs.
        return self._spawn("postgres", *self._server_options(settings), death_signal=signal.SIGQUIT)

    def _server_options(self, settings: Mapping[str, str]) -> list[str]:
        chosen = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return ["-D", str(self._home.pgdata), *chosen]

    def _has_lz4(self) -> bool:
        """PostgreSQL refuses a value that its build does not support."""
        options = self._server_options({"default_toast_compression": "lz4"})
        asked = self._spawn(
            "postgres", *options, "-C", "default_toast_compression", death_signal=signal.SIGKILL, quiet=True
        )
        return asked.wait() == 0

    def _spawn(self, program: str, *options: str, death_signal: int, quiet: bool = False) -> subprocess.Popen[bytes]:
        return spawn(
            [str(Path(self._plan.bin_dir) / program), *options],
            account=self._plan.account,
            death_signal=death_signal,
            env=clean_environment(),
            output=subprocess.DEVNULL if quiet else None,
            pass_fds=[self._server_lock.fd],
        )

    def _stop_when_unused(self, server: subprocess.Popen[bytes]) -> None:
        users = Lock(self._home.lock("users"))
        users.wait(EXCLUSIVE)
        # Never released: a user that comes now waits until this process has ended, then starts another.
        server.send_signal(signal.SIGINT)
        if not self._ended.wait(STOP_TIMEOUT):
            server.send_signal(signal.SIGQUIT)

    def _becomes_ready(self, server: subprocess.Popen[bytes]) -> bool:
        """Without a time limit: how long crash recovery may take is for the users to decide."""
        while server.poll() is None:
            if postmaster_status(self._home) == (server.pid, "ready"):
                return True
            time.sleep(POLL)
        return False

    def _publish_state(self, pid: int) -> None:
        plan = self._plan
        state = State(pid, os.getpid(), plan.version, plan.socket_dir, plan.settings)
        draft = self._home.state.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        with os.fdopen(open_ours(draft, os.O_WRONLY), "w") as file:
            json.dump(asdict(state), file)
        draft.rename(self._home.state)

    def _tidy(self) -> None:
        self._home.state.unlink(missing_ok=True)
        if Path(self._plan.socket_dir).parent != self._home.path:
            with contextlib.suppress(OSError):
                Path(self._plan.socket_dir).rmdir()


def clean_environment() -> dict[str, str]:
    """Nothing of the starter's shell (PGPORT, LANG, TZ, …) may change the server."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", **kept}


def spawn(
    command: Sequence[str],
    *,
    account: Account | None = None,
    death_signal: int,
    env: Mapping[str, str],
    output: Any = None,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Start a program that the kernel sends `death_signal` when the thread that called this ends, in whatever way.

    Where the kernel cannot do that, one that is killed leaves its child behind. `output` and `options` are for Popen.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=env,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=account.groups if account else None,
        preexec_fn=_die_with_parent(death_signal),  # noqa: PLW1509 - it calls the kernel, and nothing else
        **options,
    )


def _die_with_parent(death_signal: int) -> Callable[[], None] | None:
    """What a child runs before exec. None where the kernel cannot do it."""
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, AttributeError, OSError):
        return None
    parent = os.getpid()
    set_parent_death_signal = 1

    def tie() -> None:
        prctl(set_parent_death_signal, ctypes.c_ulong(death_signal))
        # The parent may have died just before.
        if os.getppid() != parent:
            os._exit(1)

    return tie


def main() -> None:
    plan = Plan.from_json(sys.stdin.read())
    # Before the fork: when the starter sees its child end, a free lock means that the keeper has ended.
    # Not at the first try only, since others look at this lock by holding it for a moment.
    lock = Lock(Home(Path(plan.home)).lock("keeper"))
    if not lock.acquire(EXCLUSIVE, time.monotonic() + 5):
        sys.exit("another keeper is alive")
    if os.fork():
        os._exit(0)
    os.chdir("/")
    # Users that a supervisor ends together with us finish their work first. A handler, since "ignore"
    # would be inherited by PostgreSQL.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        Keeper(plan).run()
    except (KeeperError, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"keeper: {error}")


if __name__ == "__main__":
    main()
