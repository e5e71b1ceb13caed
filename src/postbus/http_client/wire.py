"""Requests to a server: repeated while that may help, with errors translated into those of Postbus."""

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
_CHECK_SERVER = "check that the server runs and that its address is right"
_MAX_CONNECTIONS = 1000
_PASSING = (429, 503)  # the server did nothing; a later request may succeed
_OF_PROXIES = (502, 504)  # proxies do not know what the server did


class _Failed(Exception):
    """A request that may be worth another try."""

    def __init__(self, error: PostbusError, may_have_happened: bool, retry_after: float = 0.0) -> None:
        super().__init__(error.message)
        self.error = error
        self.may_have_happened = may_have_happened
        self.retry_after = retry_after


class Problem(msgspec.Struct):
    """An error as the server describes it."""

    code: str
    detail: str = ""
    remedy: str = ""


class Answer(msgspec.Struct, frozen=True):
    """A successful response."""

    body: bytes
    date: str
    """The server's time."""

    def as_json(self) -> Any:
        return msgspec.json.decode(self.body)


class Wire:
    """The connection to a server of Postbus."""

    def __init__(self, url: str, *, token: str | None, patience: float, timeout: float) -> None:
        if not url.startswith(("http://", "https://", "unix:/")):
            raise InvalidOption(
                f"{url!r} is not the address of a server",
                remedy="give one such as http://127.0.0.1:8472 or unix:/run/postbus.sock",
            )
        if token is not None and not token.isascii():
            raise InvalidOption(
                "the token has characters that no token has", remedy="give it as `tokens create` printed it"
            )
        if timeout <= 0 or patience < 0:
            raise InvalidOption(
                f"timeout {timeout} or patience {patience} is out of range",
                remedy="give a timeout above 0, and a patience of 0 or more",
            )
        self._patience = patience
        self._timeout = timeout
        limits = httpx.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=20)
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
        """Make a request, and repeat it while it fails and that may help.

        A request that `is_repeatable` may be carried out twice without harm. Any other is not repeated once it may have
        been carried out: it raises CommitUnknown. `takes` is the time for which the server may wait on purpose.
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
                        f"the request may or may not have been carried out: {failed.error.message}",
                        remedy="check before you repeat it, or send with a dedup_key, which makes repeating safe",
                    ) from failed.error
                wait = max(failed.retry_after, backoff.next())
                if time.monotonic() + wait > until:
                    raise failed.error from failed.__cause__
            await asyncio.sleep(wait)

    async def _once(self, request: httpx.Request) -> Answer:
        try:
            answer = await self._client.send(request)
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            away = DatabaseUnavailable(f"the server cannot be reached: {reason}", remedy=_CHECK_SERVER)
            raise _Failed(away, may_have_happened=not isinstance(error, _NOT_SENT)) from error
        if answer.is_success:
            return Answer(answer.content, answer.headers.get("date", ""))
        problem = _problem(answer)
        may_have_happened = isinstance(problem, CommitUnknown) or answer.status_code in _OF_PROXIES
        if may_have_happened or answer.status_code in _PASSING:
            raise _Failed(problem, may_have_happened, float(answer.headers.get("retry-after", 0.0)))
        raise problem

    async def get(self, path: str, **params: Any) -> Any:
        """The JSON at a path."""
        return (await self.ask("GET", path, is_repeatable=True, **params)).as_json()

    async def close(self) -> None:
        await self._client.aclose()


def path_of(*parts: str) -> str:
    """A path of the API. Names may contain slashes."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _problem(answer: httpx.Response) -> PostbusError:
    try:
        problem = msgspec.json.decode(answer.content, type=Problem)
    except msgspec.MsgspecError:
        return PostbusError(f"the server answered {answer.status_code}", remedy="check the address of the server")
    error = from_database(problem.code, problem.detail, problem.remedy)
    return error or PostbusError(problem.detail, remedy=problem.remedy)


def _texts(params: dict[str, Any]) -> dict[str, str]:
    return {name: str(value).lower() if value is True else str(value) for name, value in params.items() if value}
