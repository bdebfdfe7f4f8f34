"""What sinks of several systems are made of."""
