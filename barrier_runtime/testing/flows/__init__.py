"""`check`: runs a user's flow in the simulated world, with crashes at every point of the protocol."""
