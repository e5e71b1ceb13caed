"""Routes: webhooks."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from litestar.params import JSONBody, PathParameter

from postbus._admin.access import no_webhook
from postbus.errors import InvalidOption, NotServed
from postbus.relay.webhook import check_secret
from postbus.results.access import WebhookInfo
from postbus.server.paging import Cursor, Limit, decoded_cursor, next_of
from postbus.server.routing import InCall, route
from postbus.server.shapes import NewWebhook, WebhookSettings
from postbus.server.views.access import CreatedWebhook, Webhooks, WebhookView
from postbus.server.views.base import view

_TAG = "webhooks"
Name = Annotated[str, PathParameter(description="The webhook.")]


@route("GET", "/v1/webhooks", tag=_TAG)
async def list_webhooks(call: InCall, cursor: Cursor = None, limit: Limit = 1000) -> Webhooks:
    """All webhooks of topics that you may see. Go on with next as cursor."""
    [after] = decoded_cursor(cursor, ("",))
    store = await call.bus.connect()
    page = await store.webhook_page(after=after, limit=limit, topics=call.caller.topics, groups=call.caller.groups)
    following = next_of(page, lambda one: (one.name,))
    return Webhooks(webhooks=[view(WebhookView, one) for one in page.found], next=following)


@route("POST", "/v1/webhooks", status=201, errors=(409,), tag=_TAG)
async def create_webhook(call: InCall, data: JSONBody[NewWebhook]) -> CreatedWebhook:
    """Let the server send a topic's messages to an address. Only this answer has the secret that signs them."""
    call.caller.check_topic(data.topic)
    call.caller.check_group(data.group)
    _check(call, data.secret, data.url)
    secret = await call.admin.create_webhook(
        data.name, data.topic, data.url, group=data.group, secret=data.secret, concurrency=data.concurrency,
        timeout=data.timeout, enabled=data.enabled,
    )  # fmt: skip
    await call.server.webhooks_changed()
    return view(CreatedWebhook, await call.admin.webhook(data.name), secret=secret)


@route("GET", "/v1/webhooks/{webhook:str}", errors=(404,), tag=_TAG)
async def show_webhook(call: InCall, webhook: Name) -> WebhookView:
    """A webhook, without its secret."""
    return await _own(call, webhook)


@route("PATCH", "/v1/webhooks/{webhook:str}", errors=(404, 409), tag=_TAG)
async def set_webhook(call: InCall, webhook: Name, data: JSONBody[WebhookSettings]) -> WebhookView:
    """Change a webhook. Options that are left out stay. Requests under way are finished first."""
    await _own(call, webhook)
    given = {name: value for name, value in msgspec.structs.asdict(data).items() if value is not None}
    if not given:
        raise InvalidOption("no option is given", remedy='give one such as {"enabled": false}')
    _check(call, data.secret, data.url)
    await call.admin.set_webhook(webhook, **given)
    await call.server.webhooks_changed()
    return await _own(call, webhook)


@route("DELETE", "/v1/webhooks/{webhook:str}", status=204, errors=(404,), tag=_TAG)
async def delete_webhook(call: InCall, webhook: Name) -> None:
    """Remove a webhook. Its group stays, with its position."""
    await _own(call, webhook)
    await call.admin.delete_webhook(webhook)
    await call.server.webhooks_changed()


def _check(call: InCall, secret: str | None, url: str | None) -> None:
    if find_spec("httpx") is None:
        raise NotServed("webhooks need httpx on the server", remedy="pip install 'postbus[webhook]'")
    if secret is not None:
        check_secret(secret)
    if url is not None and not call.server.settings.reach.allows_host(_host(url)):
        raise InvalidOption(
            "the url of the webhook leads to an address that is not public",
            remedy=f"name a public one, or start the server with --webhook-allow {_host(url)}",
        )


def _host(url: str) -> str:
    """The host of an address. Empty if it has none: then the database refuses it."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


async def _own(call: InCall, name: str) -> WebhookView:
    """A webhook of the caller's topics and groups. Others are not found, as if they did not exist."""
    found = await call.admin.webhook(name)
    if not _is_own(call, found):
        raise no_webhook(name)
    return view(WebhookView, found)


def _is_own(call: InCall, webhook: WebhookInfo) -> bool:
    """Whether its topic and its group are the caller's; a consumer of a QUEUE has no group."""
    group = webhook.group_name
    is_of_group = call.caller.has_all_groups if group is None else call.caller.sees_group(group)
    return is_of_group and call.caller.sees(webhook.topic)


ROUTES = [list_webhooks, create_webhook, show_webhook, set_webhook, delete_webhook]
