"""The language of dataflows, as users write it."""
