"""Iterators, generated rows, collected rows and functions: no system outside the process."""
