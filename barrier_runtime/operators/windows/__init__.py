"""Windows of event time, and aggregates in them."""
