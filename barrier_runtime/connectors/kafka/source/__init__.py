"""Topics as a source: one split per partition."""
