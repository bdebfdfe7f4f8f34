"""What slots and the coordinator say to each other, as bytes, and how each proves who it is."""
