"""Checking addresses that contain passwords, with errors that quote no part of them."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from urllib.parse import unquote, urlsplit

_BEFORE_PORT = re.compile(r"(\[[^\]]*\]|[^:]*):?")

ENCODE = "in user and password write %25 for %, %2F for /, %23 for #, %3F for ?, %40 for @ and %3A for :"


def address_problem(address: str, schemes: Collection[str]) -> str | None:
    """The problem of an address, or None if it has none.

    Any part of an unreadable address may belong to the password, and libraries quote such parts in their errors. So
    addresses are checked here before a library gets them.
    """
    scheme, separator, _ = address.partition("://")
    if not separator or scheme.lower() not in schemes:
        return f"it does not begin with {' or '.join(f'{one}://' for one in schemes)}"
    with suppress(ValueError):
        parts = urlsplit(address)
        hosts = parts.netloc.rpartition("@")[2].split(",")
        if parts.fragment or ("@" in parts.path and "@" not in parts.netloc):
            return "the user or the password contains one of / ? #, which ends the host"
        if not all(is_port(_BEFORE_PORT.sub("", host, count=1)) for host in hosts):
            return "its port is not a number from 1 to 65535"
        return None
    return "its host cannot be read"


def public_address(address: str, *, with_user: bool = False) -> str:
    """An address without what may be secret, as errors may quote it; a placeholder if it cannot be read.

    That is without login and query. With `with_user` it is for people who connect by it: the user stays, and so do
    parameters that are no passwords.
    """
    with suppress(ValueError):
        parts = urlsplit(address)
        login, at, hosts = parts.netloc.rpartition("@")
        # What is no port is part of a password that contains one of / ? #.
        has_ports = all(is_port(_BEFORE_PORT.sub("", host, count=1)) for host in hosts.split(","))
        if has_ports and (parts.netloc or "@" not in address):
            user = login.partition(":")[0] + at if with_user else ""
            query = "&".join(one for one in parts.query.split("&") if with_user and not _is_password(one))
            separator = "://" if "://" in address else ":" if parts.scheme else ""
            return f"{parts.scheme}{separator}{user}{hosts}{parts.path}{query and '?'}{query}"
    return "(cannot be read)"


def _is_password(parameter: str) -> bool:
    return unquote(parameter).lower().startswith(("password=", "sslpassword="))


def is_port(text: str) -> bool:
    """Whether a text is a port number, or empty."""
    return text == "" or (text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65536 and len(text) < 6)
