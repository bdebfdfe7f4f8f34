"""What sources of several systems share."""
