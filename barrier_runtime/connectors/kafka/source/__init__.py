"""Topics as a source: a split per partition."""
