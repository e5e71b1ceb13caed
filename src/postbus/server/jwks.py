"""The keys of an issuer of JWTs: how they are fetched, and how often."""

from __future__ import annotations

import asyncio
import logging
import stat
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from postbus._db.addresses import public_address
from postbus._runtime.log_events import event
from postbus.errors import NotAuthenticated, NotServed

_LIFESPAN = 300.0  # seconds for which keys are used before they are fetched again
_APART = 60.0  # seconds, at least, between two requests
_TIMEOUT = 10.0  # seconds that a request may take
_MOST_BYTES = 1 << 20
_MOST_KEYS = 100
_now = time.monotonic


class IssuerKeys:
    """The issuer's keys, fetched when they are needed, and once a minute at most."""

    def __init__(self, jwks: str, jwt: Any) -> None:
        self._jwks = jwks
        self._jwt = jwt
        self._keys: Mapping[str, Any] = {}
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()
        self._is_reading = False

    async def key(self, key_id: str) -> Any:
        """The key with an id. The errors tell strangers only that it is unknown, or that keys cannot be fetched."""
        if self._is_stale(key_id) and not (key_id in self._keys and self._asking.locked()):
            async with self._asking:
                if self._is_stale(key_id):  # no other call has fetched them while we waited
                    await self._ask()
        if not self._keys:
            raise NotServed("JWTs cannot be checked at the moment", remedy="try again in a minute")
        if key_id not in self._keys:
            raise NotAuthenticated("the JWT's key is not known", remedy="ask its issuer for another one")
        return self._keys[key_id]

    def _is_stale(self, key_id: str) -> bool:
        age = _now() - self._asked_at
        return age > (_LIFESPAN if key_id in self._keys else _APART)

    async def _ask(self) -> None:
        """Fetch the keys. If that fails, the former ones stay in use, and the reason is logged."""
        try:
            found = self._jwt.PyJWKSet.from_json(await self._text()).keys
            self._keys = {str(one.key_id): one for one in found[:_MOST_KEYS]}
        except Exception as error:  # the answer may be anything
            event(
                logging.ERROR,
                "jwks.failed",
                jwks=public_address(self._jwks),
                error=f"{type(error).__name__}: {error}"[:500],
            )
        finally:
            self._asked_at = _now()

    async def _text(self) -> str:
        """Read the keys within the time limit.

        A thread of its own reads them, so a stalled read blocks neither the thread pool nor the end of the process.
        """
        if self._is_reading:
            raise TimeoutError("the previous request has not been answered yet")
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[str] = loop.create_future()

        def read() -> None:
            told: str | Exception
            try:
                told = _read(self._jwks)
            except Exception as error:
                told = error
            self._is_reading = False
            if not loop.is_closed():
                loop.call_soon_threadsafe(_answer, answered, told)

        self._is_reading = True
        threading.Thread(target=read, name="postbus-jwks", daemon=True).start()
        return await asyncio.wait_for(answered, _TIMEOUT)


def _answer(answered: asyncio.Future[str], told: str | Exception) -> None:
    if answered.done():
        return
    if isinstance(told, Exception):
        answered.set_exception(told)
    else:
        answered.set_result(told)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they could lead to an address that keys must not come from."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> NoReturn:
        raise urllib.error.HTTPError(req.full_url, code, "redirects are not followed", headers, fp)


def _read(jwks: str) -> str:
    if "://" not in jwks:
        return _read_file(Path(jwks))
    # Plain http is for this machine only. A proxy elsewhere could read it.
    handlers = [_NoRedirects(), *([urllib.request.ProxyHandler({})] if jwks.startswith("http:") else [])]
    until = time.monotonic() + _TIMEOUT
    taken = b""
    try:
        opened = urllib.request.build_opener(*handlers).open(jwks, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise ValueError(f"the answer is {error.code}: {error.msg}") from None
    with opened as answer:
        while part := answer.read1(1 << 16):
            taken += part
            if len(taken) > _MOST_BYTES or time.monotonic() > until:
                raise ValueError(f"it is longer than {_MOST_BYTES} bytes, or took longer than {_TIMEOUT:.0f} s")
    return taken.decode()


def _read_file(path: Path) -> str:
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is not a file")
    with path.open("rb") as file:
        taken = file.read(_MOST_BYTES + 1)
    if len(taken) > _MOST_BYTES:
        raise ValueError(f"it is longer than {_MOST_BYTES} bytes")
    return taken.decode()
