"""Durable keyed state and object storage. Knows nothing of barriers, tasks or Spark."""
