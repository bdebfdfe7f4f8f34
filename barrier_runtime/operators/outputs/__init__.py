"""Where rows go that do not go on: side outputs, branches, dead letters, rows for which a function failed."""
