"""Services of a slot's process."""
