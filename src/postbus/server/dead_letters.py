"""Routes: dead letters."""

from __future__ import annotations

from typing import Annotated

from litestar.params import JSONBody, QueryParameter

from postbus.errors import NotAllowed
from postbus.server.paging import MOST_BYTES, AfterId, Cursor, Limit, decoded_cursor, next_of
from postbus.server.routing import InCall, MessageId, TopicName, route
from postbus.server.shapes import PurgeDeadLettersBody, RedriveBody
from postbus.server.views.base import Count
from postbus.server.views.messages import DeadLetters, DeadLetterView, message_view

_TAG = "dead letters"
_Group = Annotated[str | None, QueryParameter(description="Only what this group gave up.")]
_LETTERS = "/v1/topics/{topic:str}/dead-letters"


@route("GET", "/v1/dead-letters", tag=_TAG)
async def list_all_dead_letters(
    call: InCall, after_id: AfterId = "0", cursor: Cursor = None, limit: Limit = 100
) -> DeadLetters:
    """Dead letters of all topics that you may see, by id. Go on with next as cursor."""
    return await _page(call, after_id, cursor, limit)


@route("GET", _LETTERS, errors=(404,), tag=_TAG)
async def list_dead_letters(
    call: InCall,
    topic: TopicName,
    group: _Group = None,
    after_id: AfterId = "0",
    cursor: Cursor = None,
    limit: Limit = 100,
) -> DeadLetters:
    """Dead letters of a topic, or of one of its groups, by id. Go on with next as cursor."""
    if group is not None:
        call.caller.check_group(group)
    await call.admin.semantics(topic)  # refuses a topic that does not exist
    return await _page(call, after_id, cursor, limit, topic, group)


async def _page(
    call: InCall, after_id: str, cursor: str | None, limit: int, topic: str | None = None, group: str | None = None
) -> DeadLetters:
    after = (int(after_id), None, None) if cursor is None else decoded_cursor(cursor, (0, "", ""))
    store = await call.bus.connect()
    page = await store.dead_letter_page(
        after=(after[0], after[1], after[2]), limit=limit, max_bytes=MOST_BYTES, topic=topic, group=group,
        topics=call.caller.topics, groups=call.caller.groups,
    )  # fmt: skip
    following = next_of(page, lambda one: (one.id, one.topic or "", one.group_name or ""))
    return DeadLetters(dead_letters=[message_view(DeadLetterView, one) for one in page.found], next=following)


@route("GET", f"{_LETTERS}/{{message_id:str}}", errors=(404,), tag=_TAG)
async def show_dead_letter(
    call: InCall, topic: TopicName, message_id: MessageId, group: _Group = None
) -> DeadLetterView:
    """A dead letter, with its reason and last error. Give group if several groups gave the message up."""
    if group is not None:
        call.caller.check_group(group)
    found = await call.admin.dead_letter(int(message_id), topic=topic, group=group, groups=call.caller.groups)
    return message_view(DeadLetterView, found)


@route("POST", f"{_LETTERS}/redrive", errors=(404, 409), tag=_TAG)
async def redrive_dead_letters(call: InCall, topic: TopicName, data: JSONBody[RedriveBody]) -> Count:
    """Put dead letters back: some by id, some by filter, or all. Those of a PUB_SUB topic go back to one group."""
    call.caller.check_group(data.group)
    _check_filters(call, data)
    count = await call.admin.redrive(
        topic, ids=_numbers(data.ids), reason_like=data.reason_like, died_after=data.died_after,
        died_before=data.died_before, key=data.key, max_count=data.max_count, rate=data.rate, dry_run=data.dry_run,
        group=data.group,
    )  # fmt: skip
    return Count(count=count, dry_run=data.dry_run)


@route("POST", f"{_LETTERS}/purge", errors=(404, 409), tag=_TAG)
async def purge_dead_letters(call: InCall, topic: TopicName, data: JSONBody[PurgeDeadLettersBody]) -> Count:
    """Delete dead letters for good, of all groups or of one."""
    call.caller.check_group(data.group)
    count = await call.admin.purge_dead_letters(
        topic, ids=_numbers(data.ids), died_before=data.died_before, dry_run=data.dry_run, group=data.group
    )
    return Count(count=count, dry_run=data.dry_run)


def _check_filters(call: InCall, data: RedriveBody) -> None:
    """Refuse filters on withheld text: counting matches would reveal it letter by letter."""
    if not call.caller.sees_payloads and (data.reason_like is not None or data.key is not None):
        raise NotAllowed(
            "a token without payloads cannot filter by reasons or keys",
            remedy="choose by ids, died_after, died_before and max_count, or use a token with payloads",
        )


def _numbers(ids: list[str] | None) -> list[int] | None:
    return None if ids is None else [int(one) for one in ids]


ROUTES = [list_all_dead_letters, list_dead_letters, show_dead_letter, redrive_dead_letters, purge_dead_letters]
