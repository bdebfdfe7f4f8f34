"""Durable keyed state and object storage. Knows nothing of barriers, tasks or Spark."""

if __name__ != "barrier_runtime.state":  # a second set of the same classes: no `except` would match
    raise ImportError("import barrier_runtime.state instead")
