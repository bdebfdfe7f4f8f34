"""Checks, and repairs, what a job that does not run has stored."""
