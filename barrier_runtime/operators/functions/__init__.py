"""Steps that call users' functions (of rows, batches, keys with state, several inputs), and expressions."""
