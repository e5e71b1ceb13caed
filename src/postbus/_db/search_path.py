"""The pinned search path of our statements."""

from __future__ import annotations

PIN = "set local search_path = pg_catalog, pg_temp"
"""The first statement of each transaction of Postbus.

With it, no function, operator or table that a user made in another schema, such as public, can take the place of the
one that a statement means. Transactions of users keep their own search path, so our statements in them qualify each
name.
"""
