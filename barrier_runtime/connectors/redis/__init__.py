"""Sink for Redis keys."""
