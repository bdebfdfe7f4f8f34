"""Conversion of values to columns, and of texts to values. Pure."""
