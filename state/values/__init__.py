"""Keyed state over the key-value store: a value per key, or many entries per key."""
