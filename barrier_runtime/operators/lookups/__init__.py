"""`Stream.lookup`: columns from another system, asked for while the stream goes on."""
