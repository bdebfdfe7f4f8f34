"""PostgreSQL tables, by staged or prepared transactions."""
