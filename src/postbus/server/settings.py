"""What the HTTP server is told when it starts."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from postbus.errors import InvalidOption
from postbus.relay.reach import Reach

DEFAULT_PORT = 8472


@dataclass(frozen=True)
class Limits:
    """What one caller may ask for. A caller is a token, the subject of a JWT, or, without authentication, everybody."""

    max_body: int = 16 << 20
    """Bytes of a request's body."""
    max_batch: int = 1000
    """Messages of one request, to push, to pop or to settle."""
    max_polls: int = 1000
    """Pops that wait, and streams that follow, at the same time."""
    rate: float | None = None
    """Requests per second, on average; as many as come in a second may come at once. None for any number."""

    def __post_init__(self) -> None:
        for name, least in (("max_body", 1), ("max_batch", 1), ("max_polls", 0)):
            if getattr(self, name) < least:
                raise InvalidOption(f"{name} {getattr(self, name)} is too small", remedy=f"give {least} or more")
        if self.rate is not None and not 0.001 <= self.rate <= 1e9:
            raise InvalidOption(f"rate {self.rate} is out of range", remedy="give requests per second, from 0.001 on")


@dataclass(frozen=True)
class JwtSettings:
    """Whose JWTs are taken, and which of their claims say what the caller may do."""

    issuer: str
    audience: str
    jwks: str
    """The issuer's keys: an https address, or a file."""
    roles_claim: str = "postbus_roles"
    topics_claim: str = "postbus_topics"
    groups_claim: str = "postbus_groups"
    """Where a JWT does not have it, all groups."""
    payloads_claim: str = "postbus_payloads"
    """Anything but true is without payloads; where a JWT does not have it, with them."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.jwks)
        is_file = "://" not in self.jwks
        if not (is_file or (parts.scheme == "https" and parts.hostname) or _is_http_here(parts)):
            raise InvalidOption(
                f"the keys of JWTs cannot come from {parts.scheme}://{parts.hostname or ''}, "
                "where anybody on the way could replace them",
                remedy="give --jwt-jwks an https address or a file; http is for this machine only",
            )


@dataclass(frozen=True)
class Settings:
    """How the server listens, and whom it serves."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0 for any that is free."""
    auth: bool = False
    """Ask callers for a token."""
    jwt: JwtSettings | None = None
    """Take JWTs too; this asks for authentication by itself."""
    limits: Limits = field(default_factory=Limits)
    cors_origins: tuple[str, ...] = ()
    """Web pages that may call the server: their origins, or * for any."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    webhook_allow: tuple[str, ...] = ()
    """Addresses, networks and hosts that webhooks may reach beside public addresses."""
    reach: Reach = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.is_open and not is_loopback(self.host):
            raise InvalidOption(
                f"{self.host} can be reached from other machines, and nobody would be asked who they are",
                remedy="add --auth and make tokens (postbus tokens create NAME --role ROLE), or serve 127.0.0.1",
            )
        object.__setattr__(self, "reach", Reach(self.webhook_allow))
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidOption("of TLS's certificate and key only one is given", remedy="give both, as PEM files")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise InvalidOption(f"there is no file {path}", remedy="name a PEM file")

    @property
    def is_open(self) -> bool:
        """Whether nobody is asked who they are."""
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
