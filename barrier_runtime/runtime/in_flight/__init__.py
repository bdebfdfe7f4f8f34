"""In-flight rows of a snapshot."""
