"""SQL expressions: parsed and checked, compiled to Arrow's, and the functions that they may call. Pure."""
