"""Callers by JWT: each JWT is checked with the keys that its issuer publishes."""

from __future__ import annotations

from typing import Any

from postbus.errors import InvalidOption, NotAuthenticated
from postbus.server.callers import Caller
from postbus.server.jwks import IssuerKeys
from postbus.server.rights import ROLES
from postbus.server.settings import JwtSettings

# Only algorithms with public keys. With HS256, a caller could sign with the issuer's public key.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


class JwtVerifier:
    """Finds callers by their JWTs."""

    def __init__(self, settings: JwtSettings) -> None:
        try:
            import jwt
        except ModuleNotFoundError as error:
            raise InvalidOption("JWTs need PyJWT", remedy="pip install 'postbus[jwt]'") from error
        self._jwt: Any = jwt
        self._settings = settings
        self._keys = IssuerKeys(settings.jwks, jwt)

    async def caller(self, token: str) -> Caller:
        """Return the caller whom a JWT names. Refuses an invalid JWT."""
        try:
            header = self._jwt.get_unverified_header(token)
            key = await self._keys.key(str(header.get("kid", "")))
            claims = self._jwt.decode(
                token, key, algorithms=list(ALGORITHMS), issuer=self._settings.issuer,
                audience=self._settings.audience, options={"require": ["exp", "iss", "aud", "sub"]},
            )  # fmt: skip
        except self._jwt.PyJWTError as error:
            raise NotAuthenticated(f"the JWT is refused: {error}", remedy="ask its issuer for another one") from error
        return caller_of(claims, self._settings)


def caller_of(claims: dict[str, Any], settings: JwtSettings) -> Caller:
    """The caller that claims name. A claim of the wrong type grants nothing."""
    return Caller(
        f"jwt:{claims['sub']}",
        frozenset(_texts(claims.get(settings.roles_claim))).intersection(ROLES),
        tuple(_texts(claims.get(settings.topics_claim))),
        tuple(_texts(claims.get(settings.groups_claim, "*"))),
        f"jwt:{claims['sub']}",
        sees_payloads=claims.get(settings.payloads_claim, True) is True,
    )


def _texts(claim: Any) -> list[str]:
    """The texts of a claim, which is a list of texts, or one text of several words."""
    if isinstance(claim, str):
        return claim.split()
    return [one for one in claim if isinstance(one, str)] if isinstance(claim, list | tuple) else []
