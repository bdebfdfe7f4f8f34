"""Sinks and source for Delta Lake tables."""
