"""Settlements as statements, for our connections and for those of callers with any driver.

Each statement has one value: the ids of lost messages or, for a retry, the outcome of each message as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from postbus._db.database import clean
from postbus._drivers.statement import Statement

_RETRY = (
    "select coalesce(pg_catalog.jsonb_object_agg(r.message_id, r.outcome), '{}')::pg_catalog.text from "
    "postbus.retry($1::pg_catalog.uuid, $2::bigint[], $3::interval, $4::pg_catalog.text, $5::integer) as r"
)


def ack(token: UUID, ids: Sequence[int]) -> Statement:
    return Statement("select postbus.ack($1::pg_catalog.uuid, $2::bigint[])", (token, ids))


def retry(
    token: UUID,
    ids: Sequence[int],
    *,
    delay: timedelta | None = None,
    error: str | None = None,
    max_attempts: int | None = None,
) -> Statement:
    return Statement(_RETRY, (token, ids, delay, clean(error), max_attempts))


def dead_letter(token: UUID, ids: Sequence[int], *, reason: str, error: str | None = None) -> Statement:
    sql = "select postbus.dead_letter($1::pg_catalog.uuid, $2::bigint[], $3::pg_catalog.text, $4::pg_catalog.text)"
    return Statement(sql, (token, ids, clean(reason), clean(error)))


def release(token: UUID, ids: Sequence[int]) -> Statement:
    return Statement("select postbus.release($1::pg_catalog.uuid, $2::bigint[])", (token, ids))


def outcomes(answer: str) -> dict[int, str]:
    """The outcome of each retried message: 'retried', 'dead' or 'lost'."""
    return {int(message_id): outcome for message_id, outcome in json.loads(answer).items()}


def lost(answer: Any) -> set[int]:
    """The ids of messages that another consumer has by now."""
    if isinstance(answer, str):
        return {message_id for message_id, outcome in outcomes(answer).items() if outcome == "lost"}
    return set(answer)
