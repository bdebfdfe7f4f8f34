"""Shared parts of keyed operators: lifecycle, event-time progress by key group, timers, TTL clean-up."""
