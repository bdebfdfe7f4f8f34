"""Scripts that measure what the README claims; figures and commands are in README.md beside this file."""
