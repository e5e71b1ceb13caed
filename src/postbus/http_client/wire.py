"""Requests to a server: made again while that may help, and errors as those of Postbus."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import quote

import msgspec

from postbus._runtime.loop import Backoff
from postbus.errors import CommitUnknown, DatabaseUnavailable, InvalidInput, InvalidOption, PostbusError, from_database

try:
    import httpx
except ModuleNotFoundError as error:
    raise InvalidInput(
        "the HTTP client needs httpx, which is not installed", remedy="pip install 'postbus[client]'"
    ) from error

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_AWAY = "check that the server runs and that its address is right"
_MOST_CONNECTIONS = 1000
_PASSING = (429, 503)  # nothing was done, and later it may be
_OF_PROXIES = (502, 504)  # who do not know what was done


class _Failed(Exception):
    """A request that may be worth another try."""

    def __init__(self, error: PostbusError, may_have_happened: bool, retry_after: float = 0.0) -> None:
        super().__init__(error.message)
        self.error = error
        self.may_have_happened = may_have_happened
        self.retry_after = retry_after


class Problem(msgspec.Struct):
    """What the server says of an error."""

    code: str
    detail: str = ""
    remedy: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What the server says."""

    body: bytes
    date: str
    """The server's time."""

    def as_json(self) -> Any:
        return msgspec.json.decode(self.body)


class Wire:
    """A server of Postbus."""

    def __init__(self, url: str, *, token: str | None, patience: float, timeout: float) -> None:
        if not url.startswith(("http://", "https://", "unix:/")):
            raise InvalidOption(
                f"{url!r} is no address of a server", remedy="such as http://127.0.0.1:8472, or unix:/run/postbus.sock"
            )
        if timeout <= 0 or patience < 0:
            raise InvalidOption(f"timeout {timeout} or patience {patience} makes no sense", remedy="give seconds")
        self._patience = patience
        self._timeout = timeout
        limits = httpx.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=20)
        socket = url.removeprefix("unix:") if url.startswith("unix:") else None
        self._client = httpx.AsyncClient(
            base_url=url if socket is None else "http://localhost",
            headers={"authorization": f"Bearer {token}"} if token else {},
            limits=limits,
            transport=None if socket is None else httpx.AsyncHTTPTransport(uds=socket, limits=limits),
        )

    async def ask(
        self, method: str, path: str, body: Any = None, *, is_repeatable: bool, takes: float = 0.0, **params: Any
    ) -> Answer:
        """Make a request; again, while it fails and that may help.

        What `is_repeatable` may be done twice without harm. Of the rest, what may have happened is not done again, and
        told as CommitUnknown. `takes` is how long the server may take for it on purpose.
        """
        content = None if body is None else msgspec.json.encode(body)
        request = self._client.build_request(
            method,
            path,
            content=content,
            params=_texts(params),
            headers={"content-type": "application/json"} if content else {},
            timeout=httpx.Timeout(self._timeout + takes, connect=self._timeout),
        )
        backoff = Backoff()
        until = time.monotonic() + self._patience
        while True:
            try:
                return await self._once(request)
            except _Failed as failed:
                if failed.may_have_happened and not is_repeatable:
                    raise CommitUnknown(
                        f"the request may or may not have been done: {failed.error.message}",
                        remedy="look before you repeat it, or send with a dedup_key, which makes repeating safe",
                    ) from failed.error
                wait = max(failed.retry_after, backoff.next())
                if time.monotonic() + wait > until:
                    raise failed.error from failed.__cause__
            await asyncio.sleep(wait)

    async def _once(self, request: httpx.Request) -> Answer:
        try:
            answer = await self._client.send(request)
        except httpx.TransportError as error:
            told = DatabaseUnavailable(f"the server cannot be reached: {error or type(error).__name__}", remedy=_AWAY)
            raise _Failed(told, may_have_happened=not isinstance(error, _NOT_SENT)) from error
        if answer.is_success:
            return Answer(answer.content, answer.headers.get("date", ""))
        problem = _problem(answer)
        may_have_happened = isinstance(problem, CommitUnknown) or answer.status_code in _OF_PROXIES
        if may_have_happened or answer.status_code in _PASSING:
            raise _Failed(problem, may_have_happened, float(answer.headers.get("retry-after", 0.0)))
        raise problem

    async def get(self, path: str, **params: Any) -> Any:
        """What a path shows."""
        return (await self.ask("GET", path, is_repeatable=True, **params)).as_json()

    async def close(self) -> None:
        await self._client.aclose()


def path_of(*parts: str) -> str:
    """A path of the API; names may hold slashes."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _problem(answer: httpx.Response) -> PostbusError:
    try:
        told = msgspec.json.decode(answer.content, type=Problem)
    except msgspec.MsgspecError:
        return PostbusError(f"the server answered {answer.status_code}", remedy="check the address of the server")
    return from_database(told.code, told.detail, told.remedy) or PostbusError(told.detail, remedy=told.remedy)


def _texts(params: dict[str, Any]) -> dict[str, str]:
    return {name: str(value).lower() if value is True else str(value) for name, value in params.items() if value}
