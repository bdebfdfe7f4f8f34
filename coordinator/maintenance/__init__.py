"""Looks at, and mends, what a job that does not run has stored."""
