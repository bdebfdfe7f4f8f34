"""Reads a job's stored data without the job."""
