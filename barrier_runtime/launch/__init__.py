"""Starts a job on Spark or in this process, and waits for the end of the job."""
