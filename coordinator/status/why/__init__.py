"""Explanations: of a slow or failed checkpoint, of a job that does not start, lags or shows nothing. Pure."""
