"""Exactly-once files, and the log of the files that readers may see."""
