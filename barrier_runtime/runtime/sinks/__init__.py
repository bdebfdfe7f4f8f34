"""Two-phase commit of a sink subtask."""
