"""Keyed state as numpy columns, and the segments it is written in."""
