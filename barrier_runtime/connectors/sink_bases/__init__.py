"""Parts that sinks of several systems share."""
