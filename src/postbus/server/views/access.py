"""Answers about webhooks, tokens and the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta

from postbus.results.access import TokenInfo
from postbus.server.shapes import Id
from postbus.server.views.base import ListPage, View


class WebhookView(View, kw_only=True):
    """A webhook, without its secret."""

    name: str
    topic: str
    group_name: str | None
    url: str
    concurrency: int
    timeout: float
    enabled: bool
    created_at: datetime
    changed_at: datetime


class CreatedWebhook(WebhookView, kw_only=True):
    """A new webhook with its secret, which only this answer has."""

    secret: str


class Webhooks(ListPage, kw_only=True):
    webhooks: list[WebhookView]


class Tokens(ListPage, kw_only=True):
    tokens: list[TokenInfo]


class AuditEntryView(View, kw_only=True):
    """An action on a topic, a group, a token or a setting."""

    id: Id
    at: datetime
    login: Annotated[str, Meta(description="The user who logged in to the database.")]
    role: Annotated[str | None, Meta(description="The role that this session had taken.")]
    actor: Annotated[str | None, Meta(description="The actor that the client named.")]
    program: str | None
    address: str | None
    action: Annotated[str, Meta(examples=["topic.set"])]
    topic: str | None
    group_name: str | None
    target: Annotated[str | None, Meta(description="Another object of the action: a token, a webhook, a scope.")]
    affected: Annotated[int | None, Meta(description="The number of messages or rows.")]
    given: Annotated[dict[str, Any] | None, Meta(description="The arguments that chose them.")]
    before: Annotated[dict[str, Any] | None, Meta(description="The former values of what was changed.")]
    after: dict[str, Any] | None


class AuditEntries(ListPage, kw_only=True):
    entries: list[AuditEntryView]
