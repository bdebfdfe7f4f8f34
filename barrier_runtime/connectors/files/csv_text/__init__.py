"""CSV text: where rows end, which types their columns have, and which values these keep."""
