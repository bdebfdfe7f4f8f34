"""The command line `barrier-runtime`."""
