"""The two-phase commit of a sink subtask: the driver that decides, the operator that acts."""
