"""Real servers, one of each kind per test session; for S3 a bucket per test and clients without other endpoints."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from barrier_runtime.connectors.kafka.sink import client as kafka_client
from examples.servers import (
    KafkaServer,
    PostgresServer,
    clickhouse_server,
    hdfs_server,
    iceberg_rest_server,
    kafka_server,
    mariadb_server,
    postgres_server,
    rabbitmq_server,
    redis_server,
)
from examples.servers.s3 import S3Server, known_to_clients
from tests.ends.changes_world import ChangedTables
from tests.ends.kafka_target import Job, Topic, new_job, new_topic
from tests.server_fixtures import server_fixture

clickhouse = server_fixture(clickhouse_server, scope="session")
hdfs = server_fixture(hdfs_server, scope="session")
iceberg_rest = server_fixture(iceberg_rest_server, scope="session")
kafka = server_fixture(kafka_server, scope="session")
mariadb = server_fixture(mariadb_server, scope="session")
postgres = server_fixture(postgres_server, scope="session")
rabbitmq = server_fixture(rabbitmq_server, scope="session")
redis = server_fixture(redis_server, scope="session")


@pytest.fixture(scope="session")
def s3_process() -> Iterator[S3Server]:
    server = S3Server()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def s3(s3_process: S3Server) -> Iterator[S3Server]:
    if not s3_process.running:  # a test killed the server, and failed before the restart
        s3_process.start()
    s3_process.bucket = f"test-{uuid.uuid4().hex[:12]}"
    with known_to_clients(s3_process):
        yield s3_process


@pytest.fixture
def topic(kafka: KafkaServer) -> Iterator[Topic]:
    with new_topic(kafka) as topic:
        yield topic


@pytest.fixture
def tables(postgres: PostgresServer, tmp_path: Path) -> Iterator[ChangedTables]:
    world = ChangedTables(postgres.url, tmp_path / "storage")
    try:
        yield world
    finally:
        world.close()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """Starts jobs whose sinks wait longer for brokers of a busy machine than in production, where a slot retries."""
    monkeypatch.setattr(kafka_client, "ANSWER_S", 60.0)
    with new_job() as job:
        yield job
