"""Sink for PostgreSQL tables, and a source of their changes."""
