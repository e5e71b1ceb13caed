"""An embedded PostgreSQL server, for programs and tests that have no server of their own.

    with EmbeddedPostgres.start() as postgres:
        connection = await asyncpg.connect(postgres.dsn())

All processes that name the same folder share one server. It listens on a Unix socket that only its own account and
root can reach, and it ends with its last user, even if that user is killed.

From the environment: POSTBUS_DATA_DIR, POSTBUS_PG_BIN, POSTBUS_PG_USER, POSTBUS_CACHE_DIR.
"""

from postbus._embedded.server import EmbeddedPostgres, default_data_dir

__all__ = ["EmbeddedPostgres", "default_data_dir"]
