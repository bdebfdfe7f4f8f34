"""Source of changes of PostgreSQL tables, by logical replication."""
