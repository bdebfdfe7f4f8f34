"""Runs with slots in processes of their own, without Spark: the program of a job, and slots of other machines."""
