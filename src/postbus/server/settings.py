"""Settings of the HTTP server, given when it starts."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from postbus.errors import InvalidOption
from postbus.relay.reach import Reach

DEFAULT_PORT = 8472
_ORIGIN = re.compile(r"https?://[^/?#\s@]+")


@dataclass(frozen=True)
class CallerLimits:
    """Limits of one caller. A caller is a token, the subject of a JWT, or, without authentication, everybody."""

    max_body: int = 16 << 20
    """Bytes of a request's body."""
    max_batch: int = 1000
    """Messages of one request, to push, to pop or to settle."""
    max_polls: int = 1000
    """Waiting pops and open streams at the same time."""
    rate: float | None = None
    """Requests per second, on average. As many may come at once. None: any number."""

    def __post_init__(self) -> None:
        for name, least in (("max_body", 1), ("max_batch", 1), ("max_polls", 0)):
            if getattr(self, name) < least:
                raise InvalidOption(f"{name} {getattr(self, name)} is too small", remedy=f"give {least} or more")
        if self.rate is not None and not 0.001 <= self.rate <= 1e9:
            raise InvalidOption(f"rate {self.rate} is out of range", remedy="give 0.001 or more requests per second")


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of clients before the server knows who they are."""

    connections: int = 4000
    """Connections of authenticated callers at the same time. Strangers may have an eighth more, and unused ones."""
    head_timeout: float = 10.0
    """Seconds until a request's address and headers have arrived."""
    body_timeout: float = 30.0
    """Seconds until its body has arrived; one more for each 16 KiB of it."""

    def __post_init__(self) -> None:
        if self.connections < 1:
            raise InvalidOption(f"max_connections {self.connections} is too small", remedy="give 1 or more")
        for name in ("head_timeout", "body_timeout"):
            if not 0.1 <= getattr(self, name) <= 3600:
                raise InvalidOption(f"{name} {getattr(self, name)} is out of range", remedy="give 0.1 to 3600 seconds")

    @property
    def spare(self) -> int:
        """Connections that strangers may have when authenticated callers use all of theirs."""
        return max(16, self.connections // 8)


@dataclass(frozen=True)
class UnixSocket:
    """A socket in the file system, whose permissions decide which accounts of the machine reach the server."""

    path: Path
    mode: int = 0o600

    def __post_init__(self) -> None:
        if len(str(self.path).encode()) > 107:
            raise InvalidOption(
                f"the path {self.path} is too long for a socket", remedy="give a path of up to 107 bytes"
            )
        if not 0 <= self.mode <= 0o777:
            raise InvalidOption(f"mode {self.mode:o} is not a file mode", remedy="give permissions such as 600 or 660")


@dataclass(frozen=True)
class JwtSettings:
    """The issuer whose JWTs are accepted, and the claims with the caller's rights."""

    issuer: str
    audience: str
    jwks: str
    """The issuer's keys: an https address, or a file."""
    roles_claim: str = "postbus_roles"
    topics_claim: str = "postbus_topics"
    groups_claim: str = "postbus_groups"
    """A JWT without this claim is for all groups."""
    payloads_claim: str = "postbus_payloads"
    """Only true, or no such claim, gives payloads."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.jwks)
        is_file = "://" not in self.jwks
        if not (is_file or (parts.scheme == "https" and parts.hostname) or _is_http_here(parts)):
            raise InvalidOption(
                f"the keys of JWTs cannot come from {parts.scheme}://{parts.hostname or ''}: "
                "others in the network could replace them",
                remedy="give --jwt-jwks an https address or a file; http is for this machine only",
            )


@dataclass(frozen=True)
class ServerSettings:
    """How the server listens, and which callers it serves."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0 chooses a free one."""
    auth: bool = False
    """Require a token."""
    jwt: JwtSettings | None = None
    """Accept JWTs too. This requires a token or a JWT, even without `auth`."""
    limits: CallerLimits = field(default_factory=CallerLimits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the server; * is any."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    unix_socket: UnixSocket | None = None
    """Listen there instead of on host and port."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies whose X-Forwarded-For and X-Forwarded-Proto count."""
    webhook_allow: tuple[str, ...] = ()
    """Addresses, networks and hosts that webhooks may reach beside public addresses."""
    reach: Reach = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.is_open and self.is_public:
            raise InvalidOption(
                f"other machines can reach {self.host}, and there is no authentication",
                remedy="add --auth and make tokens (postbus tokens create NAME --role ROLE), or serve 127.0.0.1",
            )
        object.__setattr__(self, "reach", Reach(self.webhook_allow))
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidOption("only one of --tls-cert and --tls-key is given", remedy="give both, as PEM files")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise InvalidOption(f"there is no file {path}", remedy="name a PEM file")
        self._check_origins()
        for proxy in self.trusted_proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError as error:
                raise InvalidOption(
                    f"trusted proxy {proxy!r} is not an address or a network: {error}",
                    remedy="give an address such as 10.0.0.7, or a network such as 10.0.0.0/24",
                ) from error

    def _check_origins(self) -> None:
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise InvalidOption(
                    f"{origin!r} is not the origin of a web page",
                    remedy="give its scheme, host and port: https://example.org",
                )
        if self.is_open and "*" in self.cors_origins:
            raise InvalidOption(
                "without authentication, every web page that is open on this machine could do everything",
                remedy="name the origins that may call it: --cors-origin https://app.example.org; or add --auth",
            )

    @property
    def warnings(self) -> list[str]:
        """Warnings about these settings, for the person who starts the server."""
        found = []
        if self.is_open and self.unix_socket is None:
            found.append(
                "without authentication, every account of this machine is an administrator here; add --auth, or serve "
                "a socket, whose permissions decide which accounts reach it: --unix-socket PATH"
            )
        if self.is_public and self.tls_cert is None:
            found.append(
                f"tokens and messages go to and from {self.host} unencrypted; add --tls-cert and --tls-key, or let "
                "only a proxy with TLS reach this address"
            )
        return found

    @property
    def is_public(self) -> bool:
        """Whether other machines reach the server."""
        return self.unix_socket is None and not is_loopback(self.host)

    @property
    def is_open(self) -> bool:
        """Whether the server runs without authentication."""
        return not self.auth and self.jwt is None


def _is_http_here(parts: SplitResult) -> bool:
    return parts.scheme == "http" and is_loopback(parts.hostname or "")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
