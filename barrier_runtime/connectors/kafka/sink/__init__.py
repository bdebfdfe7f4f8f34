"""Sink of records of a topic: exactly once by transactions with a marker, or at least once."""
