"""Phases of a job's life, one file each."""
