"""Source subtasks: split assignment, positions, and names of finished splits."""
