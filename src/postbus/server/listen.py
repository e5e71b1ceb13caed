"""Where the server listens: an address and port, or a socket in the file system."""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import sys

from postbus._runtime.log_events import event
from postbus.errors import InvalidOption
from postbus.server.settings import ConnectionLimits, ServerSettings, UnixSocket

BACKLOG = 2048
_OTHER_FILES = 256  # descriptors for everything but connections of clients


def listen(settings: ServerSettings) -> socket.socket:
    """A socket that listens where the settings say."""
    if settings.unix_socket is not None:
        return _listen_unix(settings.unix_socket)
    try:
        family, *_, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        raise InvalidOption(
            f"cannot listen on {settings.host}, port {settings.port}: {error.strerror or error}",
            remedy="another process uses it: name another one with --port" if in_use else "correct --host and --port",
        ) from error
    except OverflowError as error:
        raise InvalidOption(f"port {settings.port} is out of range", remedy="give a port up to 65535") from error


def _listen_unix(wanted: UnixSocket) -> socket.socket:
    _remove_stale(wanted)
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Nobody may connect between bind and chmod. The whole process has this mask, and makes no other files now.
    mask = os.umask(0o777)
    try:
        opened.bind(str(wanted.path))
        wanted.path.chmod(wanted.mode)
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        raise InvalidOption(
            f"cannot listen on {wanted.path}: {error.strerror or error}", remedy="name another path with --unix-socket"
        ) from error
    finally:
        os.umask(mask)
    return opened


def _remove_stale(wanted: UnixSocket) -> None:
    """Remove the socket of a server that was killed. Nothing else is removed."""
    try:
        found = wanted.path.lstat()
    except OSError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise InvalidOption(f"{wanted.path} exists and is not a socket", remedy="name another path with --unix-socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(wanted.path))
        except ConnectionRefusedError:
            wanted.path.unlink()
            return
        except OSError:
            pass
    raise InvalidOption(f"another process serves {wanted.path}", remedy="name another path with --unix-socket")


def remove_socket(settings: ServerSettings) -> None:
    """Remove the socket in the file system."""
    if settings.unix_socket is not None:
        settings.unix_socket.path.unlink(missing_ok=True)


def make_room_for(limits: ConnectionLimits) -> None:
    """Let the process open as many files as it may have connections."""
    if sys.platform == "win32":
        return
    import resource

    needed = limits.connections + limits.spare + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < needed:
        remedy = "raise the limit of open files (ulimit -n), or lower --max-connections"
        event(logging.WARNING, "http.few_files", allowed=most, needed=needed, remedy=remedy)
