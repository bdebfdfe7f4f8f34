"""Windows by event time, wall clock or count: which rows belong to one, what it holds, when it is emitted."""
