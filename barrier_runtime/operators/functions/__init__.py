"""Steps that call users' functions: of rows, of batches, of keys with state, of several inputs; expressions."""
