"""Streams of Amazon Kinesis, and of what speaks its interface, as a source."""
