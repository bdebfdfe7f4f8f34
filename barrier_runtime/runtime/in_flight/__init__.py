"""Rows in flight that belong to a snapshot."""
