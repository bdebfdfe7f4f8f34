"""Exactly-once files, and the log that says which of them readers may see."""
