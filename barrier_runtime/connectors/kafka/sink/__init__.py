"""Sink of records of a Kafka topic."""
