"""Simulated world for whole jobs: virtual time, processes, threads, TCP and stores from a single seed.

`barrier_runtime.testing.check` runs a user's flow in this world; the project's own simulation (tests/simulation) adds
faults of every kind, servers of sinks and sources, and judges.
"""
