"""Object storage: its contract, its implementations, and the keys under which everything lies."""
