"""Redis keys."""
