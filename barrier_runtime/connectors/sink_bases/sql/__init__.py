"""One sink for tables of SQL databases; a dialect says what is different about each database."""
