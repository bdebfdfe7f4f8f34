"""Checkpoint protocol of one job: events and the time in, effects out. Pure."""
