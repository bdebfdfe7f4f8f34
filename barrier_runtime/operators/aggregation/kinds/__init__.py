"""Kinds of accumulators other than plain numbers: decimals, moments, picked values, cells, collections, sketches."""
