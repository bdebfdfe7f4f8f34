"""Exactly-once files and their commit log."""
