"""Kinds of keyed state as authors of functions see them, a file per kind, over the keyed backend's tables."""
