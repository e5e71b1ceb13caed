"""All statements on one database: one method per SQL function, which returns plain values.

Callers see neither SQL nor an error of the driver.
"""

from __future__ import annotations

from postbus._db.statements.access import AccessStore
from postbus._db.statements.admin import AdminStore
from postbus._db.statements.audit import AuditStore
from postbus._db.statements.log import LogStore
from postbus._db.statements.maintenance import MaintenanceStore
from postbus._db.statements.messages import MessageStore
from postbus._db.statements.pages import PageStore
from postbus._db.statements.queue import QueueStore
from postbus._db.statements.scopes import ScopeStore


class Store(
    QueueStore, LogStore, ScopeStore, MaintenanceStore, AdminStore, MessageStore, PageStore, AuditStore, AccessStore
):
    """Runs all statements of Postbus on one database."""
