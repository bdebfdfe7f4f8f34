"""Aggregates: definitions, state columns, and running aggregates."""
