"""Parts that sources of several systems share."""
