"""Sink and source for Iceberg tables."""
