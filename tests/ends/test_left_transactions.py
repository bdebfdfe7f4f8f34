"""`barrier-runtime transactions` on real targets: a job was killed between its decisions and all of their commits."""

import json
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable

from examples.servers import KafkaServer, PostgresServer, postgres_server
from tests.ends.kafka_target import Topic, new_topic
from tests.killed_after_decisions import deciding

COMMAND = [str(Path(sys.executable).with_name("barrier-runtime"))]
ROWS = 2_000
APP = """
    import os
    import time
    from pathlib import Path

    from barrier_runtime import Dataflow
    from barrier_runtime.connectors.delta.sink import DeltaSink
    from barrier_runtime.connectors.kafka.sink.sink import KafkaSink
    from barrier_runtime.connectors.postgres.sink import PostgresSink
    from barrier_runtime.connectors.sqlite.sink import SqliteSink

    HERE = Path(__file__).parent
    GO = HERE / "may-commit"


    def waiting(sink):
        class Stuck(sink):
            def commit(self, committable):
                while not GO.exists():
                    time.sleep(0.05)
                super().commit(committable)

        return Stuck


    flow = Dataflow("stuck")
    numbers = flow.rate("numbers", 20_000 if GO.exists() else 40, {rows}).select({{"n": "value"}})
    numbers.sink("topic", waiting(KafkaSink)("{bootstrap}", "{topic}"))
    numbers.sink("postgres", waiting(PostgresSink)("{database}", "numbers"))
    numbers.sink("sqlite", waiting(SqliteSink)(str(HERE / "rows.db"), "numbers"))
    numbers.sink("delta", waiting(DeltaSink)(str(HERE / "delta")))
"""


class Job:
    """A job with four kinds of targets, and their readers' view."""

    def __init__(self, folder: Path, kafka: KafkaServer, topic: Topic, database: str) -> None:
        self.url = str(folder / "checkpoints")
        self._folder = folder
        self._topic = topic
        self._database = database
        settings = {"bootstrap": kafka.bootstrap, "topic": topic.name, "database": database, "rows": ROWS}
        (folder / "app.py").write_text(textwrap.dedent(APP.format(**settings)))
        for connection in self._connections():
            connection.execute("create table numbers (n bigint not null)")
            connection.commit()
            connection.close()

    def _connections(self) -> tuple[Any, ...]:
        return psycopg.connect(self._database), sqlite3.connect(self._folder / "rows.db")

    def command(self) -> list[str]:
        options = ["--local", "--parallelism", "1", "--interval", "0.1", "--checkpoints", self.url]
        return [*COMMAND, "run", f"{self._folder / 'app.py'}:flow", *options]

    def kill_with_decided_transactions(self) -> None:
        with deciding(self.command(), Path(self.url) / "stuck" / "log", records=6, patience_s=120):
            pass

    def run_on(self) -> None:
        (self._folder / "may-commit").touch()
        done = subprocess.run(self.command(), capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def settle(self, action: str) -> list[dict[str, object]]:
        command = [*COMMAND, "transactions", "stuck", action, "--checkpoints", self.url, "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return list(json.loads(done.stdout)["transactions"])

    def visible(self) -> dict[str, list[int]]:
        """The sorted rows. Kafka and Delta list doubled rows twice."""
        tables = {}
        for name, connection in zip(("postgres", "sqlite"), self._connections(), strict=True):
            tables[name] = [n for (n,) in connection.execute("select n from numbers order by n").fetchall()]
            connection.close()
        there = DeltaTable.is_deltatable(str(self._folder / "delta"))
        delta = DeltaTable(str(self._folder / "delta")).to_pyarrow_table()["n"].to_pylist() if there else []
        return {**tables, "topic": sorted(row["n"] for row in self._topic.read()), "delta": sorted(delta)}


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """A server with a database without rows of other tests."""
    with postgres_server() as server:
        yield server


@pytest.mark.parametrize("action", ["commit", "abort"])
def test_what_a_killed_job_decided_is_settled_from_its_checkpoints_alone(
    action: str, kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    """T4: both commands make all decided rows visible, once; abort also drops undecided rows. The job continues."""
    with new_topic(kafka, partitions=1) as topic:
        job = Job(tmp_path, kafka, topic, postgres.url)
        job.kill_with_decided_transactions()
        assert job.visible() == {"topic": [], "postgres": [], "sqlite": [], "delta": []}
        listed = job.settle("list")
        assert {each["sink"] for each in listed} == {"topic", "postgres", "sqlite", "delta"}
        job.settle(action)
        settled = job.visible()
        count = len(settled["topic"])
        assert 0 < count < ROWS
        assert settled == {target: list(range(count)) for target in settled}
        job.settle(action)
        assert job.visible() == settled, "again is no news"
        job.run_on()
        assert job.visible() == {target: list(range(ROWS)) for target in settled}
