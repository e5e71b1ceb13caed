"""Callers that somebody else vouches for: JWTs, checked by the keys that their issuer publishes."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from pathlib import Path
from typing import Any

from postbus.errors import InvalidOption, NotAuthenticated, NotServed
from postbus.server.callers import Caller
from postbus.server.rights import ROLES
from postbus.server.settings import JwtSettings

# Only those whose keys cannot be used to sign: with HS256 a public key would be taken for a password.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_LIFESPAN = 300.0  # seconds that keys are used without asking again
_APART = 10.0  # seconds between two questions because of a key that is not known
_TIMEOUT = 10.0  # seconds
_MOST_BYTES = 1 << 20


class JwtVerifier:
    """Knows callers by their JWTs."""

    def __init__(self, settings: JwtSettings) -> None:
        try:
            import jwt
        except ModuleNotFoundError as error:
            raise InvalidOption("JWTs need PyJWT", remedy="pip install 'postbus[jwt]'") from error
        self._jwt: Any = jwt
        self._settings = settings
        self._keys = _Keys(settings.jwks)

    async def caller(self, token: str) -> Caller:
        """Who a JWT speaks of. Refuses one that is not right."""
        try:
            header = self._jwt.get_unverified_header(token)
            key = await self._keys.key(self._jwt, str(header.get("kid", "")))
            claims = self._jwt.decode(
                token, key, algorithms=list(ALGORITHMS), issuer=self._settings.issuer,
                audience=self._settings.audience, options={"require": ["exp", "iss", "aud", "sub"]},
            )  # fmt: skip
        except self._jwt.PyJWTError as error:
            raise NotAuthenticated(f"the JWT is refused: {error}", remedy="ask its issuer for another one") from error
        return caller_of(claims, self._settings)


def caller_of(claims: dict[str, Any], settings: JwtSettings) -> Caller:
    """Whom claims speak of. A claim that is there and not understood gives nothing."""
    return Caller(
        f"jwt:{claims['sub']}",
        frozenset(_texts(claims.get(settings.roles_claim))).intersection(ROLES),
        tuple(_texts(claims.get(settings.topics_claim))),
        tuple(_texts(claims.get(settings.groups_claim, "*"))),
        f"jwt:{claims['sub']}",
        sees_payloads=claims.get(settings.payloads_claim, True) is True,
    )


class _Keys:
    """The issuer's keys, asked for when they are needed."""

    def __init__(self, jwks: str) -> None:
        self._address = jwks if "://" in jwks else Path(jwks).resolve().as_uri()
        self._keys: dict[str, Any] = {}
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()

    async def key(self, jwt: Any, key_id: str) -> Any:
        async with self._asking:
            age = time.monotonic() - self._asked_at
            if age > _LIFESPAN or (key_id not in self._keys and age > _APART):
                await self._ask(jwt)
        if key_id not in self._keys:
            raise NotAuthenticated(f"the JWT's key {key_id!r} is not known", remedy="ask its issuer for another one")
        return self._keys[key_id]

    async def _ask(self, jwt: Any) -> None:
        try:
            text = await asyncio.to_thread(self._read)
            self._keys = {str(one.key_id): one for one in jwt.PyJWKSet.from_json(text).keys}
        except (OSError, ValueError, jwt.PyJWTError) as error:
            if not self._keys:
                raise NotServed(f"the keys for JWTs cannot be had: {error}", remedy="see --jwt-jwks") from error
        self._asked_at = time.monotonic()

    def _read(self) -> str:
        with urllib.request.urlopen(self._address, timeout=_TIMEOUT) as answer:
            return str(answer.read(_MOST_BYTES), "utf-8")


def _texts(claim: Any) -> list[str]:
    """A claim as texts: a list of them, or words in one."""
    if isinstance(claim, str):
        return claim.split()
    return [one for one in claim if isinstance(one, str)] if isinstance(claim, list | tuple) else []
