"""Messages between slots and the coordinator, their bytes, and mutual authentication."""
