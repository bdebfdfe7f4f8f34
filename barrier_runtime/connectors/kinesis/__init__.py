"""Source of streams of Amazon Kinesis and of servers with the same interface."""
