"""The inbox: effects that happen once, although deliveries repeat. In PostgreSQL, or in Redis.

Needs no bus: a connection, or a client, is enough.
"""

from postbus.inbox._postgres import Inbox
from postbus.inbox._redis import RedisInbox

__all__ = ["Inbox", "RedisInbox"]
