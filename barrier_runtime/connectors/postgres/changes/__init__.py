"""Changes of PostgreSQL tables by logical replication, as a source."""
