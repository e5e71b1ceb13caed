"""Results about the audit log, tokens and webhooks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

TokenRole = Literal["producer", "consumer", "observer", "operator", "admin"]
TokenState = Literal["valid", "revoked", "expired"]


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An action that somebody took on a topic, a group, a token or a setting."""

    id: int
    at: datetime
    login: str
    """The user who logged in to the database."""
    role: str | None
    """The role that the session had taken."""
    actor: str | None
    """The actor that the client named."""
    program: str | None
    address: str | None
    action: str
    """Such as topic.set."""
    topic: str | None
    group_name: str | None
    target: str | None
    """Another object of the action: a token, a webhook, a scope."""
    affected: int | None
    """Messages, or rows."""
    given: dict[str, Any] | None
    """The arguments that chose them."""
    before: dict[str, Any] | None
    """The former values of what was changed."""
    after: dict[str, Any] | None


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A token of the HTTP server, without its secret."""

    id: str
    name: str
    roles: list[TokenRole]
    topics: list[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    state: TokenState
    groups: list[str]
    payloads: bool
    created_by: Annotated[
        str | None, Meta(description="The database user who made it, and for whom; null if nobody noted that.")
    ]
    last_used_at: Annotated[datetime | None, Meta(description="To the minute or so; null if it was never used.")]


class WebhookInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook, without its secret."""

    name: str
    topic: str
    group_name: str | None
    """None for a QUEUE."""
    url: str
    concurrency: int
    timeout: timedelta
    enabled: bool
    created_at: datetime
    changed_at: datetime
