"""Real servers, one of each per test session; of S3 one per test, the only one that its clients know."""

from collections.abc import Iterator

import pytest

from examples.servers import KafkaServer, kafka_server, postgres_server, rabbitmq_server, redis_server, s3_server
from tests.ends.kafka_target import Job, Topic, new_job, new_topic
from tests.server_fixtures import server_fixture

kafka = server_fixture(kafka_server, scope="session")
postgres = server_fixture(postgres_server, scope="session")
rabbitmq = server_fixture(rabbitmq_server, scope="session")
redis = server_fixture(redis_server, scope="session")
s3 = server_fixture(s3_server, scope="function")


@pytest.fixture
def topic(kafka: KafkaServer) -> Iterator[Topic]:
    with new_topic(kafka) as topic:
        yield topic


@pytest.fixture
def job() -> Iterator[Job]:
    with new_job() as job:
        yield job
