"""Savepoints in object stores: written and read, brought into a job, listed, deleted."""
