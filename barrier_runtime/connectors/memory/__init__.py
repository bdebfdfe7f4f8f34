"""Iterators, generated rows, collected rows and functions: no outside system."""
