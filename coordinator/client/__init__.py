"""Access of drivers and the command line to a coordinator, or a coordinator of their own."""
