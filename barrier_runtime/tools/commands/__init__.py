"""Commands of `barrier-runtime`: their arguments, and calls of the modules that do the work."""
