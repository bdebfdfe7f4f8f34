"""Kafka topics. Only this folder imports confluent_kafka."""
