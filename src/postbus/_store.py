"""The door to the database: one method per SQL function, rows in, plain values out.

Nothing above this module sees SQL, a row or an error of the driver.
"""

from __future__ import annotations

from postbus._admin_store import AdminStore
from postbus._audit_store import AuditStore
from postbus._http_store import HttpStore
from postbus._log_store import LogStore
from postbus._page_store import PageStore
from postbus._queue_store import QueueStore
from postbus._scope_store import ScopeStore
from postbus._upkeep_store import UpkeepStore


class Store(QueueStore, LogStore, ScopeStore, UpkeepStore, AdminStore, PageStore, AuditStore, HttpStore):
    """All that can be asked of one database."""
