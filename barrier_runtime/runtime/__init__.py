"""Runtime of a slot: a process with a loop, and a subtask of every chain."""
