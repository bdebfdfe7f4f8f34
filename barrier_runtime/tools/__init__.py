"""The command `barrier-runtime`."""
