"""State machines of barrier alignment, pure."""
