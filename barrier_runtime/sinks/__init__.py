"""Sinks: the two-phase contract, its driver, and the targets that come with the package."""
