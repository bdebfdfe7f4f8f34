"""Steps that call users' functions (of rows, batches, keys, several inputs), and expressions."""
