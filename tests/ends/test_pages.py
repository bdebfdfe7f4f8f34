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

from examples.servers import ClickHouseServer, MariaServer, PostgresServer
from examples.servers.s3 import S3Server
from tests.barrier_runtime.connectors.kinesis.kinesis_world import KinesisWorld
from tests.test_documents import PROGRAM, ROOT


def run_page(page: str, places: Mapping[str, str]) -> dict[str, Any]:
    """Runs the programs of `page`, each of whose `places` is put in once at least; what is below `__main__`, too.
    Returns their names."""
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


def test_mysql(mariadb: MariaServer, tmp_path: Path) -> None:
    table = f"totals_{uuid.uuid4().hex[:8]}"
    orders = [{"shop": "a", "price": 1.5}, {"shop": "b", "price": 2.0}, {"shop": "a", "price": 2.5}]
    (tmp_path / "orders.jsonl").write_text("".join(json.dumps(order) + "\n" for order in orders), encoding="utf-8")
    with contextlib.closing(mariadb.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"create table {table} (shop varchar(20) primary key, turnover double)")
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


def test_changes(postgres: PostgresServer, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"shop_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    url = postgres.url.removesuffix("postgres") + name
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table customers (id int primary key, city text)")
        connection.execute("create table orders (id int primary key, customer int)")
        connection.execute("insert into customers values (1, 'Aachen'), (2, 'Bonn')")
        connection.execute("insert into orders values (10, 2), (11, 1)")
    text = run_page("changes.md", {"postgresql://app@db/shop": url, 'form="upsert"': 'form="upsert", until="current"'})
    text["flow"].run_local()
    assert capsys.readouterr().out.count("'customer': ") == 2
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"drop database {name} with (force)")


def test_kinesis(s3: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    clicks = KinesisWorld(s3.endpoint, 2)  # moto serves it beside S3
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
