"""A subtask's part of a source: which splits it reads, how far it is, and what it remembers of those that ended."""
