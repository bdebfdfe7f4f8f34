"""Checkpoints under way, committed and retained. Pure."""
