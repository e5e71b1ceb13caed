"""The door to the database: one method per SQL function, rows in, plain values out.

Nothing above this module sees SQL, a row or an error of the driver.
"""

from __future__ import annotations

from collections.abc import Sequence

from postbus._admin_store import AdminStore
from postbus._log_store import LogStore
from postbus._queue_store import QueueStore
from postbus._segment import Piece
from postbus._upkeep_store import UpkeepStore


class Store(QueueStore, LogStore, UpkeepStore, AdminStore):
    """All that can be asked of one database."""

    async def read_log(
        self, topic: str, lanes: Sequence[int], cursor: str, *, max_count: int, max_bytes: int, target: str | None
    ) -> Piece:
        """As LogStore's; named here, so that who measures reads can wrap it for every store."""
        return await super().read_log(topic, lanes, cursor, max_count=max_count, max_bytes=max_bytes, target=target)
