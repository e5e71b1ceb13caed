"""The search path of statements of ours."""

from __future__ import annotations

PIN = "set local search_path = pg_catalog, pg_temp"
"""The first statement of each transaction of ours.

No function, operator or table that somebody made elsewhere, such as in the schema public, stands in for one that we
mean. Transactions of users keep the search path that they know, so statements of ours in them have each name qualified.
"""
