"""`check`: a user's whole flow in the simulated world, crashed at every point of the protocol."""
