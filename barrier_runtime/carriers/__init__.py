"""Processes that slots run in."""
