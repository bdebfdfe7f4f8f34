"""Contracts of sources and sinks, and a folder for each system.
No system's folder imports another system's folder."""
