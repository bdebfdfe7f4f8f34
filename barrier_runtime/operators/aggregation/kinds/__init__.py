"""Accumulators other than plain numbers: decimals, moments, picks, cells, collections, sketches."""
