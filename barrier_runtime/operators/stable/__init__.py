"""`Stream.stable`: stored rows, released after the decision."""
