"""Keyed state as numpy columns, and segments, the files of such state."""
