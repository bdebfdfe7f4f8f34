"""Patterns of paths, and walks through folders."""
