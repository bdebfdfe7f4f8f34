"""Starts a job and waits for its end: on Spark, or in this process."""
