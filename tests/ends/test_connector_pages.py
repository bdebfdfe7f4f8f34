"""Programs of the pages of connectors that need a server, as they are printed, with the places put in."""

import contextlib
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from clickhouse_driver import Client
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from examples.servers import ClickHouseServer, KafkaServer, MariaServer, PostgresServer, RabbitServer
from examples.servers.s3 import S3Server
from tests.barrier_runtime.connectors.kinesis.kinesis_world import KinesisWorld
from tests.ends.kafka_target import new_topic
from tests.ends.kafka_world import Topic
from tests.ends.rabbitmq_world import address, queue_of
from tests.ends.schema_registry import schema_registry
from tests.integration.harness import visible_files
from tests.test_documents import PROGRAM, ROOT

CUSTOMER: dict[str, Any] = {
    "type": "record",
    "name": "Value",
    "fields": [{"name": "id", "type": "int"}, {"name": "city", "type": ["null", "string"]}],
}
CUSTOMER_EVENT = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", CUSTOMER]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "source", "type": {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}},
        {"name": "op", "type": "string"},
    ],
}


def run_page(page: str, places: Mapping[str, str]) -> dict[str, Any]:
    """Runs the programs of `page`, including code below `__main__`; each of the `places` occurs at least once. Returns
    the names of the programs.
    """
    programs = "\n".join(code for code, _ in PROGRAM.findall((ROOT / "docs" / page).read_text(encoding="utf-8")))
    for printed, real in places.items():
        assert printed in programs, f"{page} does not have {printed}"
        programs = programs.replace(printed, real)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(programs, page, "exec"), names)
    return names


def test_clickhouse(clickhouse: ClickHouseServer, tmp_path: Path) -> None:
    table = f"totals_{uuid.uuid4().hex[:8]}"
    pq.write_table(pa.table({"user": [1, 2, 1], "amount": [10, 20, 30]}), tmp_path / "orders.parquet")
    text = (ROOT / "docs/clickhouse.md").read_text(encoding="utf-8")
    (create,) = [line for line in text.splitlines() if line.startswith("CREATE TABLE totals ")]
    with Client("127.0.0.1", port=clickhouse.port) as database:
        database.execute(create.replace("totals", table))
        names = run_page(
            "clickhouse.md",
            {
                "s3://lake/orders": str(tmp_path),
                "clickhouse://host:9000/default": clickhouse.url,
                '"totals", key=': f'"{table}", key=',
            },
        )
        names["flow"].run_local()
        assert sorted(database.execute(f"SELECT user, total FROM {table} FINAL")) == [(1, 40), (2, 20)]
        database.execute(f"DROP TABLE {table}")


def test_kafka(kafka: KafkaServer, capsys: pytest.CaptureFixture[str]) -> None:
    orders = Topic(kafka)
    orders.write(
        [json.dumps({"shop": shop, "amount": amount}) for shop, amount in (("a", 1.5), ("b", 2.0), ("a", 2.5))]
    )
    orders.write(["no order"])
    with new_topic(kafka) as totals:
        places = {
            "broker:9092": kafka.bootstrap,
            '    "orders",\n    group=': f'    "{orders.name}",\n    until="latest",\n    group=',
            '"totals", key=': f'"{totals.name}", key=',
        }
        run_page("kafka.md", places)["flow"].run_local()
        told = {(row["shop"], row["turnover"]) for row in totals.read()}
    assert {("a", 4.0), ("b", 2.0)} <= told
    assert "no order" in capsys.readouterr().out


def test_postgres(postgres: PostgresServer, tmp_path: Path) -> None:
    table = f"totals_{uuid.uuid4().hex[:8]}"
    orders = [{"shop": "a", "price": 1.5}, {"shop": "b", "price": 2.0}, {"shop": "a", "price": 2.5}]
    (tmp_path / "orders.jsonl").write_text("".join(json.dumps(order) + "\n" for order in orders), encoding="utf-8")
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"create table {table} (shop text primary key, turnover double precision)")
        run_page(
            "postgres.md",
            {
                '"in/"': repr(str(tmp_path)),
                "postgresql://app@db/shop": postgres.url,
                '"totals", mode=': f'"{table}", mode=',
                'checkpoints="checkpoints"': f"checkpoints={str(tmp_path / 'checkpoints')!r}",
            },
        )
        assert connection.execute(f"select * from {table} order by shop").fetchall() == [("a", 4.0), ("b", 2.0)]
        connection.execute(f"drop table {table}")


def test_rabbitmq(rabbitmq: RabbitServer, tmp_path: Path) -> None:
    with queue_of(rabbitmq) as queue:
        ended = f'    "{queue.name}",\n    until_idle=timedelta(seconds=2),\n    deduplicate='
        for number, amount in enumerate((1.5, -1.0, 2.5)):
            queue.publish(json.dumps({"shop": "a", "amount": amount}).encode(), message_id=f"m-{number}")
        run_page(
            "rabbitmq.md",
            {
                "amqp://broker:5672/%2F": address(rabbitmq),
                "from barrier_runtime": "from datetime import timedelta\n\nfrom barrier_runtime",
                '    "orders",\n    deduplicate=': ended,
                '"out/"': repr(str(tmp_path / "out")),
                'checkpoints="checkpoints"': f"checkpoints={str(tmp_path / 'checkpoints')!r}",
            },
        )
    rows = [json.loads(line) for file in visible_files(tmp_path / "out") for line in file.read_text().splitlines()]
    assert sorted(row["amount"] for row in rows) == [1.5, 2.5]


def test_mysql(mariadb: MariaServer, tmp_path: Path) -> None:
    table = f"totals_{uuid.uuid4().hex[:8]}"
    orders = [{"shop": "a", "price": 1.5}, {"shop": "b", "price": 2.0}, {"shop": "a", "price": 2.5}]
    (tmp_path / "orders.jsonl").write_text("".join(json.dumps(order) + "\n" for order in orders), encoding="utf-8")
    with contextlib.closing(mariadb.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"create table {table} (shop varchar(20) collate utf8mb4_bin primary key, turnover double)")
        names = run_page(
            "mysql.md",
            {
                '"in/"': repr(str(tmp_path)),
                "mysql://app@db.example.org/shop": mariadb.url,
                '"totals", mode=': f'"{table}", mode=',
                'run(parallelism=4, checkpoints="s3://lake/checkpoints")': "run_local()",
            },
        )
        assert names["flow"].name == "totals"
        cursor.execute(f"select shop, turnover from {table} order by shop")
        assert cursor.fetchall() == (("a", 4.0), ("b", 2.0))
        cursor.execute(f"drop table {table}")


def test_changes(postgres: PostgresServer, kafka: KafkaServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Two flows: of PostgreSQL, and of Debezium's events, orders as JSON and customers by Avro and a registry."""
    cities, bought = {1: "Aachen", 2: "Bonn"}, {10: 2, 11: 1}
    name = f"shop_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    url = postgres.url.removesuffix("postgres") + name
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table customers (id int primary key, city text)")
        connection.execute("create table orders (id int primary key, customer int)")
        for id, city in cities.items():
            connection.execute("insert into customers values (%s, %s)", (id, city))
        for id, customer in bought.items():
            connection.execute("insert into orders values (%s, %s)", (id, customer))
    orders, customers = Topic(kafka), Topic(kafka)
    source = {"ts_ms": 1_704_067_200_000}
    for id, customer in bought.items():
        after = {"id": id, "customer": customer}
        orders.write([json.dumps({"op": "c", "before": None, "after": after, "source": source})])
    with schema_registry() as registry:
        serialise = AvroSerializer(SchemaRegistryClient({"url": registry.url}), json.dumps(CUSTOMER_EVENT))
        context = SerializationContext(customers.name, MessageField.VALUE)
        for id, city in cities.items():
            event = {"op": "r", "before": None, "after": {"id": id, "city": city}, "source": source}
            customers.write([serialise(event, context)])
        places = {
            "postgresql://app@db/shop": url,
            'form="upsert"': 'form="upsert", until="current"',
            "broker:9092": kafka.bootstrap,
            "http://registry:8081": registry.url,
            "shop.public.orders": orders.name,
            "shop.public.customers": customers.name,
            '{"group": "names"': '{"group": "names", "until": "latest"',
        }
        names = run_page("changes.md", places)
        for flow in (names["flow"], names["shop"]):
            flow.run_local()
            assert capsys.readouterr().out.count("'customer': ") == 2
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"drop database {name} with (force)")


def test_kinesis(s3: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    clicks = KinesisWorld(s3.endpoint, 2)  # moto serves Kinesis and S3
    clicks.put([json.dumps({"user": n, "page": "checkout" if n % 2 else "home"}).encode() for n in range(10)])
    names = run_page(
        "kinesis.md",
        {
            'KinesisSource("clicks", region="eu-central-1"': f'KinesisSource("{clicks.name}", region="us-east-1", '
            f'endpoint="{clicks.endpoint}", until="latest"'
        },
    )
    names["flow"].run_local()
    printed = capsys.readouterr().out
    assert sorted(n for n in range(10) if f"'user': {n}," in printed) == [1, 3, 5, 7, 9]
