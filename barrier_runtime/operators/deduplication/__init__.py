"""The first row of each id, in bounded memory."""
