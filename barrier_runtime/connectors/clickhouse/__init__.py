"""Sink for tables of ClickHouse."""
