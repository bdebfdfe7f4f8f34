"""Files as a source: found, watched, read from any position."""
