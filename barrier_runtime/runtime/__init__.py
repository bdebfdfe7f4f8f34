"""A slot at work: one process, one loop, one subtask of every chain."""
