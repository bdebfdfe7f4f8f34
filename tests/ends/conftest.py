"""Real servers, one of each per test session, started when first asked for. What is missing fails, with the remedy."""

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


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    with kafka_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitServer]:
    with rabbitmq_server() as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def s3() -> Iterator[S3Server]:
    """Empty, and the only S3 that clients in this process and its children know."""
    with s3_server() as server:
        yield server
