"""The first checks of a request: where it comes from, and whether a web page sends it."""

from __future__ import annotations

import ipaddress
from urllib.parse import unquote

from litestar.types import ASGIApp, Receive, Scope, Send

from postbus.errors import InvalidInput, NotAllowed, PostbusError
from postbus.server.problems import MEDIA_TYPE, problem
from postbus.server.settings import ServerSettings, is_loopback

_OWN_PAGES = ("same-origin", "none")


class RequestFilter:
    """Checks requests before the application gets them.

    Names of topics and groups may contain slashes, which are encoded in paths. Web pages in a browser on this machine
    must not use a server without authentication: neither by a host name that resolves to it, nor from another origin.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._is_open = settings.is_open
        self._origins = frozenset(settings.cors_origins)
        self._proxies = tuple(ipaddress.ip_network(one) for one in settings.trusted_proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if str(scope["type"]) == "http":
            if self._proxies:
                self._believe_proxy(scope)
            error = self._why_not(scope) if self._is_open else None
            if error is not None:
                await _refuse(error, send)
                return
            raw = scope.get("raw_path", b"")
            if b"%2f" in raw.lower():
                path = raw.decode("ascii", "replace").replace("%2f", "%2F").replace("%2F", "%1F")
                scope["path"] = unquote(path)
        await self._app(scope, receive, send)

    def _believe_proxy(self, scope: Scope) -> None:
        """Take the client's address and scheme from a trusted proxy.

        Each proxy appends the address of its client. Addresses that a client made up come before that, so the last
        address that is not a proxy's counts.
        """
        client = scope["client"]
        if client is None or not self._is_proxy(client[0]):
            return
        forwarded = ",".join(_all(scope, b"x-forwarded-for")).split(",")
        for text in reversed(forwarded):
            address = _address(text)
            if address is None:
                break
            scope["client"] = (address, 0)
            if not self._is_proxy(address):
                break
        schemes = ",".join(_all(scope, b"x-forwarded-proto")).split(",")
        if (scheme := schemes[-1].strip()) in ("http", "https"):
            scope["scheme"] = scheme

    def _is_proxy(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._proxies)

    def _why_not(self, scope: Scope) -> PostbusError | None:
        hosts = _all(scope, b"host")
        if len(hosts) > 1:
            return InvalidInput("the request names several hosts", remedy="send one Host header")
        host = hosts[0] if hosts else "localhost"
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if not is_loopback(name.strip("[]")):
            return NotAllowed(
                f"this server is not {host}", remedy="use the address that the server names when it starts"
            )
        origins = _all(scope, b"origin")
        if origins and self._origins.issuperset(origins):
            return None
        own = f"{scope['scheme']}://{host}"
        for origin in origins:
            if origin != own:
                return NotAllowed(
                    f"pages of {origin} may not call this server",
                    remedy=f"allow them: postbus serve --cors-origin {origin:.200}",
                )
        if any(site not in _OWN_PAGES for site in _all(scope, b"sec-fetch-site")):
            return NotAllowed(
                "a page of another site made this request", remedy="open the address in a new tab, or use a program"
            )
        return None


def _all(scope: Scope, name: bytes) -> list[str]:
    """The values of a header, in the order in which they came."""
    return [value.decode("latin-1").strip() for one, value in scope["headers"] if one == name]


def _address(text: str) -> str | None:
    """An address as proxies write it: alone, with a port, or in brackets. None for anything else."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


async def _refuse(error: PostbusError, send: Send) -> None:
    answer = problem(error)
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(answer.content)).encode())]
    await send({"type": "http.response.start", "status": answer.status_code or 403, "headers": headers})
    await send({"type": "http.response.body", "body": answer.content, "more_body": False})
