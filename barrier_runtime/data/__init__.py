"""Batches of rows, with keys, times and types. Pure."""
