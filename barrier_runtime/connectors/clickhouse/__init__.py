"""Tables of ClickHouse as a target."""
