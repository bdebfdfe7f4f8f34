"""State of keyed functions as their authors see it: one file per kind, over the tables of the keyed backend."""
