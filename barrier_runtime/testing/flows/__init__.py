"""`check`: runs a user's flow in the simulated world, with crashes."""
