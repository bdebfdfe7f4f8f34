"""Source of streams of Amazon Kinesis."""
