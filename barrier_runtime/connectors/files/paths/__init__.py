"""Paths of files: patterns, folders, and what is found there."""
