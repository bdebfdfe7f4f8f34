"""The simulated world in which whole jobs run: virtual time, processes, threads, TCP and object stores from one seed.

`barrier_runtime.testing.check` runs a user's flow in it; the project's own simulation (tests/simulation) adds trouble
of every kind, servers of sinks and sources, and judges."""
