"""Batches of rows. Pure."""
