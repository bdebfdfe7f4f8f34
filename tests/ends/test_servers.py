"""The servers that the other tests use: each keeps data over a stop and a kill, and leaves no process behind."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from examples.servers import (
    KafkaServer,
    PostgresServer,
    RabbitServer,
    RedisServer,
    S3Server,
    ServerError,
    base,
    kafka_server,
    postgres_server,
    rabbitmq_server,
    redis_server,
    s3_server,
)
from examples.servers.base import Server, find_program, free_port
from examples.servers.kafka_ends import asked_again, done_at_last
from tests.ends.rabbitmq_world import connected
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]


def write_to_kafka(server: KafkaServer, value: str) -> None:
    from confluent_kafka import Producer

    if value == "first":
        server.create_topic("kept", partitions=1)
    producer = Producer({"bootstrap.servers": server.bootstrap, "acks": "all"})
    producer.produce("kept", value.encode())
    assert producer.flush(60) == 0


def read_from_kafka(server: KafkaServer) -> list[str]:
    from confluent_kafka import Consumer, TopicPartition

    reader = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "reader", "enable.auto.commit": False})
    _, end = asked_again(lambda: reader.get_watermark_offsets(TopicPartition("kept", 0), timeout=10))
    reader.assign([TopicPartition("kept", 0, 0)])
    read: list[Any] = []
    while len(read) < end:
        read += reader.consume(end - len(read), timeout=20)
    reader.close()
    return [message.value().decode() for message in read]


def write_to_postgres(server: PostgresServer, value: str) -> None:
    import psycopg

    with psycopg.connect(server.url) as connection:
        connection.execute("create table if not exists kept (id serial, value text)")
        connection.execute("insert into kept (value) values (%s)", [value])


def read_from_postgres(server: PostgresServer) -> list[str]:
    import psycopg

    with psycopg.connect(server.url) as connection:
        return [value for (value,) in connection.execute("select value from kept order by id")]


def write_to_rabbitmq(server: RabbitServer, value: str) -> None:
    import pika

    with connected(server) as connection:
        channel = connection.channel()
        channel.queue_declare("kept", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "kept", value.encode(), pika.BasicProperties(delivery_mode=2))


def read_from_rabbitmq(server: RabbitServer) -> list[str]:
    """The messages stay in the queue: unacknowledged messages return when the connection ends."""
    with connected(server) as connection:
        channel = connection.channel()
        count = channel.queue_declare("kept", passive=True).method.message_count
        return [channel.basic_get("kept")[2].decode() for _ in range(count)]


def write_to_redis(server: RedisServer, value: str) -> None:
    import redis

    with redis.Redis.from_url(server.url) as client:
        client.rpush("kept", value)


def read_from_redis(server: RedisServer) -> list[str]:
    import redis

    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        return list(client.lrange("kept", 0, -1))


def write_to_s3(server: S3Server, value: str) -> None:
    import boto3

    client = boto3.client("s3", endpoint_url=server.endpoint)
    count = client.list_objects_v2(Bucket="barrier-runtime")["KeyCount"]
    client.put_object(Bucket="barrier-runtime", Key=str(count), Body=value.encode())


def read_from_s3(server: S3Server) -> list[str]:
    import boto3

    client = boto3.client("s3", endpoint_url=server.endpoint)
    keys = [found["Key"] for found in client.list_objects_v2(Bucket="barrier-runtime").get("Contents", [])]
    return [client.get_object(Bucket="barrier-runtime", Key=key)["Body"].read().decode() for key in keys]


SERVERS = {
    "kafka": (kafka_server, write_to_kafka, read_from_kafka),
    "postgres": (postgres_server, write_to_postgres, read_from_postgres),
    "rabbitmq": (rabbitmq_server, write_to_rabbitmq, read_from_rabbitmq),
    "redis": (redis_server, write_to_redis, read_from_redis),
    "s3": (s3_server, write_to_s3, read_from_s3),
}


@pytest.mark.parametrize("name", SERVERS)
def test_server_keeps_its_data_and_place_when_stopped_and_when_killed(name: str) -> None:
    make: Callable[[], AbstractContextManager[Server]] = SERVERS[name][0]
    write, read = SERVERS[name][1:]
    with make() as server:
        directory, port = server.directory, server.port
        write(server, "first")
        for end, value in (
            (server.stop, "second"),
            (server.kill, "third"),
        ):  # RabbitMQ takes a while to note a new queue
            pids = server.pids
            assert server.running
            assert pids
            end()
            assert not server.running
            with pytest.raises(Exception):  # noqa: B017, PT011 - each client has different errors
                server.ready()
            server.start()
            write(server, value)
        assert read(server) == ["first", "second", "third"]
        assert server.port == port
        pids = server.pids
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []
    assert not directory.exists()


@pytest.mark.parametrize("name", ["postgres", "rabbitmq"])
def test_a_server_does_not_outlive_the_process_that_asked_for_it(name: str) -> None:
    """Also after a kill of the process, and although parts of the server have detached themselves from it."""
    program = f"""
        import time
        import psutil
        from examples.servers import {name}_server
        with {name}_server() as server:
            print(server.directory, *(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
            time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        directory, *pids = asking.stdout.readline().split()
        os.kill(asking.pid, signal.SIGKILL)
    assert len(pids) > 3
    until(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids))
    assert not Path(directory).exists()


def test_a_server_that_cannot_start_says_what_it_said() -> None:
    with (
        pytest.raises(ServerError, match=r"postgres ended at once:\n.*max_connections"),
        postgres_server(max_connections=-1),
    ):
        pass


def test_a_server_that_is_not_installed_says_which_command_brings_it() -> None:
    with pytest.raises(ServerError, match=r"nosuchserver is not installed: apt-get install no-such-package"):
        find_program("nosuchserver", "no-such-package", "usr/lib/nosuch/*/bin/nosuchserver")


def test_no_two_servers_are_given_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    few = range(31_000, 31_030)
    monkeypatch.setattr(base, "_PORTS", few)
    here = [free_port() for _ in range(12)]
    program = f"from examples.servers import base; base._PORTS = {few!r}; print(*[base.free_port() for _ in range(8)])"
    there = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    given = here + [int(port) for port in there.stdout.split()]
    assert len(set(given)) == len(given) == 20


def test_settings_reach_the_servers_and_a_password_is_asked_for() -> None:
    import psycopg

    with postgres_server(password="open:sesame/@", max_prepared_transactions=7) as server:
        with psycopg.connect(server.url) as connection:
            assert connection.execute("show max_prepared_transactions").fetchone() == ("7",)
        assert "sesame" not in server.dsn
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(server.dsn, passfile="/dev/null")


def test_unanswered_order_is_repeated_and_only_then_tolerates_an_existing_result() -> None:
    from confluent_kafka import KafkaError, KafkaException

    said = [KafkaError._TIMED_OUT, KafkaError.TOPIC_ALREADY_EXISTS]

    def order() -> None:
        raise KafkaException(KafkaError(said.pop(0)))

    done_at_last(order, KafkaError.TOPIC_ALREADY_EXISTS)
    assert said == []
    said = [KafkaError.TOPIC_ALREADY_EXISTS]
    with pytest.raises(KafkaException):
        done_at_last(order, KafkaError.TOPIC_ALREADY_EXISTS)
    assert said == []
