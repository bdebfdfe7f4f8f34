"""What sinks of lakehouse tables share."""
