"""Windows by event time, wall clock or count: assignment of rows, content, and times of results."""
