"""Keyed state of one value per key, over the key-value store."""
