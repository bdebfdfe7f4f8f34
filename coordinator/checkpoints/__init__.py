"""Pending, committed and retained checkpoints. Pure."""
