"""Keyed state over the key-value store: one value per key, or many entries per key."""
