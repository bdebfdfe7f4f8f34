"""Parts that sinks of lakehouse tables share."""
