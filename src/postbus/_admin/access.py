"""Looking after the HTTP server's tokens and webhooks."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime

import msgspec

from postbus._admin.base import AdminBase
from postbus._content.codec import is_storable
from postbus.errors import InvalidOption, WebhookNotFound
from postbus.options import Duration, as_timedelta
from postbus.results.access import TokenInfo, TokenRole, WebhookInfo
from postbus.start import Start

TOKEN_PREFIX = "pbt"


class NewToken(msgspec.Struct, frozen=True):
    """A token as only its creator sees it."""

    id: str
    token: str
    """The text that callers send: Authorization: Bearer pbt_…"""
    expires_at: datetime | None


def token_parts(token: str) -> tuple[str, bytes] | None:
    """The id of a token, and the hash of its secret; None for what is none."""
    prefix, _, rest = token.partition("_")
    token_id, _, secret = rest.partition("_")
    if prefix != TOKEN_PREFIX or not token_id or not secret or not token.isascii():
        return None
    return token_id, hashlib.sha256(secret.encode()).digest()


class AccessAdmin(AdminBase):
    """Operators' methods for tokens and webhooks. Reached as `bus.admin`."""

    async def create_token(
        self,
        name: str,
        roles: Sequence[TokenRole],
        *,
        topics: Sequence[str] = ("*",),
        groups: Sequence[str] = ("*",),
        payloads: bool = True,
        expires_in: Duration | None = None,
    ) -> NewToken:
        """Make a token for the HTTP server. Its secret is told here, and never again.

        `roles` are some of producer, consumer, observer, operator and admin. `topics` and `groups` are names in which *
        stands for any text. Without `payloads` it is shown nothing that publishers and handlers have written: for
        producers, observers and operators.
        """
        for text in (name, *roles, *topics, *groups):
            if not isinstance(text, str) or not is_storable(text):
                raise InvalidOption(f"{text!r} is not a text", remedy="give texts without NUL characters")
        lifetime = None if expires_in is None else as_timedelta(expires_in, name="expires_in")
        token = f"{TOKEN_PREFIX}_{secrets.token_hex(6)}_{secrets.token_hex(32)}"
        parts = token_parts(token)
        assert parts is not None
        store = await self._store()
        expires_at = await store.create_token(
            *parts, name, list(roles), list(topics), list(groups), lifetime, payloads=payloads
        )
        return NewToken(parts[0], token, expires_at)

    async def tokens(self) -> list[TokenInfo]:
        """All tokens, also those that are revoked or expired, without their secrets."""
        return await (await self._store()).tokens()

    async def revoke_token(self, token_id: str) -> None:
        """End a token. Servers that know it forget it within seconds."""
        await (await self._store()).revoke_token(token_id)

    async def create_webhook(
        self,
        name: str,
        topic: str,
        url: str,
        *,
        group: str | None = None,
        secret: str | None = None,
        concurrency: int = 4,
        timeout: Duration = 10.0,
        enabled: bool = True,
    ) -> str:
        """Let the HTTP servers send a topic's messages to `url`. Returns the secret that they are signed with.

        A group that is new gets what is published from now on.
        """
        chosen = secret or f"whsec_{base64.b64encode(secrets.token_bytes(24)).decode()}"
        store = await self._store()
        await store.create_webhook(
            {
                "name": name, "topic": topic, "url": url, "secret": chosen, "group_name": group,
                "concurrency": concurrency, "timeout": as_timedelta(timeout, name="timeout"), "enabled": enabled,
            }
        )  # fmt: skip
        if group is not None:
            await store.subscribe(topic, group, Start.NOW, "block")
        return chosen

    async def set_webhook(
        self,
        name: str,
        *,
        url: str | None = None,
        secret: str | None = None,
        concurrency: int | None = None,
        timeout: Duration | None = None,
        enabled: bool | None = None,
    ) -> None:
        """Change a webhook: what is left out stays."""
        await (await self._store()).set_webhook(
            {
                "name": name, "url": url, "secret": secret, "concurrency": concurrency, "enabled": enabled,
                "timeout": None if timeout is None else as_timedelta(timeout, name="timeout"),
            }
        )  # fmt: skip

    async def delete_webhook(self, name: str) -> None:
        """Remove a webhook. Its group stays, with its position."""
        await (await self._store()).delete_webhook(name)

    async def webhooks(self) -> list[WebhookInfo]:
        """All webhooks, without their secrets."""
        return await (await self._store()).webhooks()

    async def webhook(self, name: str) -> WebhookInfo:
        """One webhook, without its secret."""
        found = await (await self._store()).webhooks(name)
        if not found:
            raise no_webhook(name)
        return found[0]


def no_webhook(name: str) -> WebhookNotFound:
    return WebhookNotFound(f"there is no webhook {name!r}", remedy="list them: GET /v1/webhooks")
