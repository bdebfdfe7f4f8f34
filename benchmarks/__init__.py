"""Scripts that measure what the README claims; commands, and what was tried, are in README.md beside this
file, figures in figures.md."""
