"""Real servers for tests and examples, each with a free loopback port and temporary data.

    with kafka_server(transaction_max_timeout_ms=5000) as kafka:
        kafka.bootstrap, kafka.kill(), kafka.start(), …

A missing server raises `ServerError`, which names the command that installs the server (`.ci/servers` installs all).
"""

from examples.servers.base import Server, ServerError
from examples.servers.clickhouse import ClickHouseServer, clickhouse_server
from examples.servers.hdfs import HdfsServer, hdfs_server
from examples.servers.iceberg_rest import IcebergRestServer, iceberg_rest_server
from examples.servers.kafka import KafkaServer, kafka_server
from examples.servers.mariadb import MariaServer, mariadb_server
from examples.servers.postgres import PostgresServer, postgres_server
from examples.servers.rabbitmq import RabbitServer, rabbitmq_server
from examples.servers.redis import RedisServer, redis_server
from examples.servers.s3 import S3Server, s3_server

__all__ = [
    "ClickHouseServer",
    "HdfsServer",
    "IcebergRestServer",
    "KafkaServer",
    "MariaServer",
    "PostgresServer",
    "RabbitServer",
    "RedisServer",
    "S3Server",
    "Server",
    "ServerError",
    "clickhouse_server",
    "hdfs_server",
    "iceberg_rest_server",
    "kafka_server",
    "mariadb_server",
    "postgres_server",
    "rabbitmq_server",
    "redis_server",
    "s3_server",
]
