"""Checkpoint protocol of a job: events and the time in, effects out. Pure."""
