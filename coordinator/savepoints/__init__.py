"""Savepoints in object stores: written, read, imported into a job, listed, deleted."""
