"""Kafka topics. The only folder that knows confluent_kafka."""
