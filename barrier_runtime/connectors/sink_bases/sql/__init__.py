"""One sink for tables of SQL databases, and a dialect per database."""
