"""Kinds of keyed state for authors of functions, a file per kind, over the keyed backend's tables."""
