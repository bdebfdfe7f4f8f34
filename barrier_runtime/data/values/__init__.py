"""What flows: batches of rows, their keys, times and types. Pure."""
