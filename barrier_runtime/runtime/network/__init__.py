"""Channels between subtasks, and the connections they go through."""
