"""Real servers of a test of its own, which it may kill. What is not installed fails, with the remedy."""

from collections.abc import Iterator

import pytest

from examples.servers import (
    KafkaServer,
    PostgresServer,
    RabbitServer,
    RedisServer,
    S3Server,
    kafka_server,
    postgres_server,
    rabbitmq_server,
    redis_server,
    s3_server,
)


@pytest.fixture
def kafka() -> Iterator[KafkaServer]:
    with kafka_server() as server:
        yield server


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def rabbitmq() -> Iterator[RabbitServer]:
    with rabbitmq_server() as server:
        yield server


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def s3() -> Iterator[S3Server]:
    """Empty, and the only S3 that clients in this process and its children know."""
    with s3_server() as server:
        yield server
