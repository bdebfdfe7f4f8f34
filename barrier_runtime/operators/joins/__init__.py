"""Joins: of two streams, with a changing table, with a small table; and the buffers of held rows."""
