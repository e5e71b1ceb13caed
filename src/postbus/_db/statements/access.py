"""Statements for tokens and webhooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from postbus._db.database import Database
from postbus._db.rows import as_structs
from postbus.results.access import TokenInfo, WebhookInfo


class AccessStore(Database):
    """Runs statements for tokens and webhooks."""

    async def create_token(
        self,
        token_id: str,
        digest: bytes,
        name: str,
        roles: Sequence[str],
        topics: Sequence[str],
        groups: Sequence[str],
        expires_in: timedelta | None,
        *,
        payloads: bool,
    ) -> datetime | None:
        expires_at: datetime | None = await self._act(
            "select postbus.create_token($1, $2, $3, $4, $5, $6, $7, $8)",
            token_id,
            digest,
            name,
            roles,
            topics,
            expires_in,
            groups,
            payloads,
        )
        return expires_at

    async def tokens(self) -> list[TokenInfo]:
        return as_structs(TokenInfo, await self._rows("select * from postbus.tokens order by created_at, id"))

    async def revoke_token(self, token_id: str) -> None:
        await self._act("select postbus.revoke_token($1)", token_id)

    async def check_tokens(self, tokens: Sequence[tuple[str, bytes]]) -> dict[tuple[str, bytes], dict[str, Any]]:
        """The rows of valid tokens, by their ids and hashes. Invalid tokens are left out."""
        rows = await self._rows(
            "select asked.id as asked_id, asked.hash as asked_hash, found.* "
            "from unnest($1::text[], $2::bytea[]) as asked (id, hash) "
            "cross join lateral postbus.check_token(asked.id, asked.hash) as found",
            [token_id for token_id, _ in tokens],
            [digest for _, digest in tokens],
        )
        return {(row["asked_id"], bytes(row["asked_hash"])): row for row in rows}

    async def note_token_uses(self, uses: Mapping[str, bytes]) -> None:
        """Note that tokens were used just now, each with the hash of its secret."""
        await self._run("select postbus.note_token_uses($1, $2)", list(uses), list(uses.values()))

    async def create_webhook(self, given: Mapping[str, Any]) -> None:
        await self._act(f"select postbus.create_webhook({_named(given)})", *given.values())

    async def set_webhook(self, given: Mapping[str, Any]) -> None:
        await self._act(f"select postbus.set_webhook({_named(given)})", *given.values())

    async def delete_webhook(self, name: str) -> None:
        await self._act("select postbus.delete_webhook($1)", name)

    async def webhooks(self, name: str | None = None) -> list[WebhookInfo]:
        rows = await self._rows(
            "select * from postbus.webhooks where $1::text is null or name = $1 order by name", name
        )
        return as_structs(WebhookInfo, rows)

    async def webhooks_to_run(self) -> list[dict[str, Any]]:
        return await self._rows("select * from postbus.webhooks_to_run()")


def _named(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} => ${number}" for number, name in enumerate(given, 1))
