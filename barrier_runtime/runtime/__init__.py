"""Runtime of a slot: one process, one loop, one subtask of every chain."""
