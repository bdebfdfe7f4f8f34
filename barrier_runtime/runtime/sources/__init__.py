"""Source subtasks."""
