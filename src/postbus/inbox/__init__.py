"""Inboxes make effects happen once although deliveries repeat, by records in PostgreSQL or in Redis.

They need a connection or a client, and no bus.
"""

from postbus.inbox._postgres import Inbox
from postbus.inbox._redis import RedisInbox

__all__ = ["Inbox", "RedisInbox"]
