"""Sink for tables of SQL databases, with a dialect per database."""
