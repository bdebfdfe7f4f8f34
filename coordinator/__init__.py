"""The checkpoint protocol, the decision log and the daemon that runs them. Imports `state`, never `barrier_runtime`."""
