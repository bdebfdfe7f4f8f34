"""Channels between subtasks, and their connections."""
