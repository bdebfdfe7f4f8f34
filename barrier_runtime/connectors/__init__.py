"""Sources and sinks: the two contracts, and one folder per system. No system's folder imports another's."""
