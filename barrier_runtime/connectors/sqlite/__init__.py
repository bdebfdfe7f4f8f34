"""Rows into tables of SQLite."""
