"""Conversion of values and texts to columns. Pure."""
