"""Kinds of accumulators beside plain numbers: decimals, moments, picked values, cells, collections, sketches."""
