"""Joins of two streams, with a table that changes, and with a small table; the rows that they hold."""
