"""Aggregates: what they are, the columns they are kept in, and those that never end."""
