"""Outputs besides the main output: side outputs, branches, dead letters, rows whose function failed."""
