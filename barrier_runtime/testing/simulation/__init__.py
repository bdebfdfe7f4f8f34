"""Simulated world for whole jobs, determined by a single seed.

`barrier_runtime.testing.check` runs users' flows in this world; tests/simulation adds faults and judges.
"""
