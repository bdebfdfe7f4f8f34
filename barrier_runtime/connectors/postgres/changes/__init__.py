"""Source of the changes of PostgreSQL tables, by logical replication."""
