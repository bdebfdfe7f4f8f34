"""The coordinator's process: the edge around `job`."""
