"""Reads what a job has stored, without the job."""
