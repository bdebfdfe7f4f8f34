"""Real servers private to a test, which the test may kill."""

from examples.servers import (
    clickhouse_server,
    kafka_server,
    mariadb_server,
    postgres_server,
    rabbitmq_server,
    redis_server,
    s3_server,
)
from tests.server_fixtures import server_fixture

clickhouse = server_fixture(clickhouse_server, scope="function")
kafka = server_fixture(kafka_server, scope="function")
mariadb = server_fixture(mariadb_server, scope="function")
postgres = server_fixture(postgres_server, scope="function")
rabbitmq = server_fixture(rabbitmq_server, scope="function")
redis = server_fixture(redis_server, scope="function")
s3 = server_fixture(s3_server, scope="function")
