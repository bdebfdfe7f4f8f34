"""A store and databases whose answers take as long as those of a real service, and what the runtime does with them."""
