"""Surroundings of the examples of `make run`: servers, incoming flights, expected results."""

import contextlib
import datetime
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from examples import kafka_to_kafka, kafka_to_postgres, rabbitmq_to_delta
from examples.bids_stage import Bids
from examples.flights_data import load_flights, prepare
from examples.fraud_stage import Fraud
from examples.orders_stage import OrdersToIceberg
from examples.run_check import Key, Verdict, batch_answer, compare_windows
from examples.run_feeds import KafkaFeed, RabbitFeed, as_json
from examples.run_stage import Stage
from examples.run_topic import TopicReader
from examples.servers import kafka_server, postgres_server, rabbitmq_server

_PARTITIONS = 4
_RABBIT_ROWS = 27_004  # January


class KafkaToKafka(Stage):
    def __init__(self, stack: contextlib.ExitStack, folder: Path, seconds: float) -> None:
        self._kafka = stack.enter_context(kafka_server())
        self._kafka.create_topic("flights", partitions=_PARTITIONS)
        self._kafka.create_topic("departures", partitions=_PARTITIONS)
        self.servers = [self._kafka]
        self.flow = kafka_to_kafka.build(self._kafka.bootstrap)
        self._flights = _flights_of(seconds / self.seconds)
        self.records = self._flights.num_rows
        self.feed = _kafka_feed(self._kafka.bootstrap, self._flights, seconds)
        self._visible = 0
        self._reader = stack.enter_context(contextlib.closing(TopicReader(self._kafka.bootstrap, "departures")))

    def visible_rows(self) -> int:
        self._visible += len(self._reader.read())
        return self._visible

    def expected_rows(self) -> int:
        return self.records - self._flights["dep_time"].null_count

    def committed(self) -> str:
        return f"Committed by partition: {self._reader.committed()}, read up to {self._reader.reached}."

    def check(self) -> Verdict:
        """Each departed flight must occur once; an airline's counts are 1, 2, 3, … in the order of the topic."""
        rows_in = enumerate(self._flights.select(["carrier", "dep_time"]).to_pylist())
        truth = {  # (partition, offset) -> airline, as dealt by the feed
            (number % _PARTITIONS, number // _PARTITIONS): row["carrier"]
            for number, row in rows_in
            if row["dep_time"] is not None
        }
        verdict = Verdict(len(truth), len(truth))
        with contextlib.closing(TopicReader(self._kafka.bootstrap, "departures")) as reader:
            rows = [json.loads(value) for value in reader.read()]
        times = Counter((row["partition"], row["offset"]) for row in rows)
        for place in truth.keys() - times.keys():
            verdict.note("lost", f"flight {place}")
        for place, count in times.items():
            for _ in range(count - 1):
                verdict.note("duplicated", f"flight {place}")
        so_far: Counter[str] = Counter()
        for row in rows:
            so_far[row["carrier"]] += 1
            right = truth.get((row["partition"], row["offset"])) == row["carrier"]
            if not right or row["departures"] != so_far[row["carrier"]]:
                verdict.note("mismatched", f"{row}, expected count {so_far[row['carrier']]}")
        return verdict


class KafkaToPostgres(Stage):
    def __init__(self, stack: contextlib.ExitStack, folder: Path, seconds: float) -> None:
        import psycopg

        kafka = stack.enter_context(kafka_server())
        kafka.create_topic("flights", partitions=_PARTITIONS)
        self._postgres = stack.enter_context(postgres_server())
        with psycopg.connect(self._postgres.url) as connection:
            connection.execute(kafka_to_postgres.TABLE)
        self.servers = [kafka, self._postgres]
        self.flow = kafka_to_postgres.build(kafka.bootstrap, self._postgres.url)
        flights = _flights_of(seconds / self.seconds)
        self.records = flights.num_rows
        self.feed = _kafka_feed(kafka.bootstrap, flights, seconds)
        self._files = prepare(folder, rows=self.records)
        departed = flights.filter(pc.field("dep_time").is_valid())
        days = pc.floor_temporal(departed["scheduled"], unit="day")
        self._windows = (
            departed.append_column("day", days).group_by(["origin", "carrier", "day"]).aggregate([]).num_rows
        )

    def visible_rows(self) -> int:
        return int(self._select("SELECT count(*) FROM daily_departures")[0][0])

    def expected_rows(self) -> int:
        return self._windows

    def check(self) -> Verdict:
        truth = batch_answer(self._files)
        verdict = Verdict(len(truth), sum(row[0] for row in truth.values()))
        columns = "origin, carrier, name, window_start, flights, mean_delay, max_delay"
        found: list[tuple[Key, Key]] = [
            ((origin, carrier, name, round(start.timestamp() * 1000)), tuple(values))
            for origin, carrier, name, start, *values in self._select(f"SELECT {columns} FROM daily_departures")
        ]
        compare_windows(verdict, truth, found)
        return verdict

    def _select(self, query: str) -> list[Any]:
        import psycopg

        with psycopg.connect(self._postgres.url) as connection:
            return connection.execute(query).fetchall()  # type: ignore[call-overload]


class RabbitToDelta(Stage):
    def __init__(self, stack: contextlib.ExitStack, folder: Path, seconds: float) -> None:
        import pika

        rabbitmq = stack.enter_context(rabbitmq_server())
        with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
            connection.channel().queue_declare("flights", durable=True)
        self.servers = [rabbitmq]
        self._table = str(folder.parent / "run" / "departures")
        self.flow = rabbitmq_to_delta.build(rabbitmq.url, self._table)
        self._flights = load_flights().slice(0, _RABBIT_ROWS)
        self.records = self._flights.num_rows
        self.feed = RabbitFeed(rabbitmq.url, "flights", as_json(self._flights), seconds)

    def visible_rows(self) -> int:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self._table):
            return 0
        return int(DeltaTable(self._table).to_pyarrow_dataset().count_rows())

    def expected_rows(self) -> int:
        return self.records - self._flights["dep_time"].null_count

    def check(self) -> Verdict:
        """Each departed flight must occur once, with the sent values."""
        truth = {
            str(number): row for number, row in enumerate(self._flights.to_pylist()) if row["dep_time"] is not None
        }
        verdict = Verdict(len(truth), len(truth))
        found = self._rows().to_pylist()
        times = Counter(row["message_id"] for row in found)
        for number in truth.keys() - times.keys():
            verdict.note("lost", f"message {number}")
        for row in found:
            number = row.pop("message_id")
            if times[number] > 1:
                times[number] -= 1
                verdict.note("duplicated", f"message {number}")
            if row != truth.get(number):
                verdict.note("mismatched", f"message {number}: {row}, sent was {truth.get(number)}")
        return verdict

    def _rows(self) -> pa.Table:
        from deltalake import DeltaTable

        return pa.table(DeltaTable(self._table).to_pyarrow_table())


STAGES: dict[str, type[Stage]] = {
    "bids": Bids,
    "fraud": Fraud,
    "kafka_to_kafka": KafkaToKafka,
    "kafka_to_postgres": KafkaToPostgres,
    "orders_to_iceberg": OrdersToIceberg,
    "rabbitmq_to_delta": RabbitToDelta,
}


def _flights_of(share: float) -> pa.Table:
    """First flights of the year: a shorter run has fewer flights, at the same pace."""
    flights = load_flights()
    return flights.slice(0, round(flights.num_rows * min(1.0, share)))


def _kafka_feed(bootstrap: str, flights: pa.Table, seconds: float) -> KafkaFeed:
    last = flights["scheduled"][-1].as_py() + datetime.timedelta(days=3)
    heartbeat = msgspec.json.encode({"scheduled": last})  # without departure time: a cancelled flight
    return KafkaFeed(bootstrap, "flights", _PARTITIONS, as_json(flights), seconds, heartbeat)
