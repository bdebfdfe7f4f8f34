"""CSV text: row boundaries, guessed column types, and checks of values."""
