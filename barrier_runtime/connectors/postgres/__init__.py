"""Sink for PostgreSQL tables, and source of their changes."""
