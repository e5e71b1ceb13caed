"""Ports that no other process gets while their server is down."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST = 15_000
_HANDED_OUT: set[int] = set()


def free_port() -> int:
    """A free port on 127.0.0.1, below the range that the kernel uses for outgoing connections.

    Within that range, a client that tries to reach a stopped server may get the server's own port: it is then
    connected to itself, and the server cannot start again.
    """
    ports = list(range(_LOWEST, _first_ephemeral()))
    random.shuffle(ports)
    for port in ports:
        if port not in _HANDED_OUT and _is_free(port):
            _HANDED_OUT.add(port)
            return port
    raise OSError("no port is free on 127.0.0.1")


def _first_ephemeral() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except FileNotFoundError:
        return 32_768


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
