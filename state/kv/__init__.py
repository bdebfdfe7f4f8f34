"""The key-value store below keyed state: bytes in, bytes out."""
