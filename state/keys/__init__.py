"""Keys of state: their key groups, their bytes, and their rows in columns."""
