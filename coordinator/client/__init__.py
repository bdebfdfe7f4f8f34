"""Access of drivers and the command line to coordinators."""
