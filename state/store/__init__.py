"""Object storage: contract, implementations, and keys of all objects."""
