"""Commands of `barrier-runtime`: arguments and calls."""
