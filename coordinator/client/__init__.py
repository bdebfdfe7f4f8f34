"""How drivers and the command line reach a coordinator, or start their own."""
