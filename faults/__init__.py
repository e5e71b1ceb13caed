"""The fault driver: producers and consumers against a PostgreSQL that is hurt, judged from outside the database."""
