"""Operators, the steps of a chain.
Operators read no clock, open no socket and start no thread: `base.OperatorContext` hands these to them."""
