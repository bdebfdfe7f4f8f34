"""Explanations of slow or failed checkpoints, and of jobs that do not start or lag. Pure."""
