"""A store and databases with the answer times of a real service, and the runtime's figures with them."""
