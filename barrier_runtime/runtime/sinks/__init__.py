"""Two-phase commit of a sink subtask: the driver decides, the operator acts."""
