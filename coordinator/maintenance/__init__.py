"""Checks and repairs of the stored objects of a stopped job."""
