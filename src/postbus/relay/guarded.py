"""HTTP requests that reach only addresses which a rule allows. It needs httpx, and is imported only for that."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpcore
import httpx

from postbus.relay.reach import OutOfReach, Reach

_ERRORS: tuple[tuple[type[Exception], type[httpx.TransportError]], ...] = (
    (httpcore.ConnectTimeout, httpx.ConnectTimeout),
    (httpcore.ReadTimeout, httpx.ReadTimeout),
    (httpcore.WriteTimeout, httpx.WriteTimeout),
    (httpcore.PoolTimeout, httpx.PoolTimeout),
    (httpcore.ConnectError, httpx.ConnectError),
    (httpcore.ReadError, httpx.ReadError),
    (httpcore.WriteError, httpx.WriteError),
    (httpcore.RemoteProtocolError, httpx.RemoteProtocolError),
    (httpcore.LocalProtocolError, httpx.LocalProtocolError),
    (httpcore.UnsupportedProtocol, httpx.UnsupportedProtocol),
)


class GuardedTransport(httpx.AsyncBaseTransport):
    """Sends requests by connections that obey a rule, and never by a proxy, which would bypass it."""

    def __init__(self, reach: Reach, *, connections: int) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context(),
            max_connections=connections,
            network_backend=_GuardedBackend(reach),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        assert isinstance(request.stream, httpx.AsyncByteStream)
        asked = httpcore.Request(
            method=request.method,
            url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _translated():
            answer = await self._pool.handle_async_request(asked)
        return httpx.Response(answer.status, headers=answer.headers, stream=_Stream(answer.stream))

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Stream(httpx.AsyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translated():
            async for part in self._stream:
                yield part

    async def aclose(self) -> None:
        with _translated():
            await self._stream.aclose()


class _GuardedBackend(httpcore.AsyncNetworkBackend):
    """Connects to addresses that it has checked: no name is resolved between the check and the connection."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        found = await _addresses(host, port, timeout)
        allowed = [one for one in found if self._reach.allows(host, one)]
        if not allowed:
            raise OutOfReach(host)
        failure: Exception = httpcore.ConnectError("no address")
        for address in allowed:
            try:
                stream = await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
                continue
            if not self._may_stay(host, stream.get_extra_info("socket")):
                await stream.aclose()
                raise OutOfReach(host)
            return stream
        raise failure

    def _may_stay(self, host: str, connected: Any) -> bool:
        """Whether a connection leads to an allowed address. This machine's own public one is no such address.

        Firewalls do not guard it against requests from here.
        """
        peer, own = connected.getpeername()[0], connected.getsockname()[0]
        return self._reach.allows(host, peer) and (peer != own or self._reach.names(host, peer))


async def _addresses(host: str, port: int, timeout: float | None) -> list[str]:
    """The addresses of a host, each once."""
    try:
        async with asyncio.timeout(timeout):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError as error:
        raise httpcore.ConnectTimeout(str(error)) from error
    except (OSError, UnicodeError) as error:
        raise httpcore.ConnectError(str(error)) from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@contextmanager
def _translated() -> Iterator[None]:
    """Translate errors of httpcore into those of httpx."""
    try:
        yield
    except Exception as error:
        for theirs, ours in _ERRORS:
            if isinstance(error, theirs):
                raise ours(str(error)) from error
        raise
