"""Sink for tables of SQLite."""
