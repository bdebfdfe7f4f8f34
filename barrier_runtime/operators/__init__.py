"""What a chain is made of: one file per kind of operator. No clock, no socket, no thread: all comes in through
`base`."""
