"""Files as a source: listing, watching, and reading from any position."""
