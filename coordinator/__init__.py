"""Checkpoint protocol, decision log and daemon. Imports `state`, never `barrier_runtime`."""

if __name__ != "barrier_runtime.coordinator":  # a second set of the same classes: no `except` would match
    raise ImportError("import barrier_runtime.coordinator instead")
