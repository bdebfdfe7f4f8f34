"""Runtime of a slot."""
