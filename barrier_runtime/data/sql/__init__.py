"""SQL expressions, compiled to Arrow's. Pure."""
