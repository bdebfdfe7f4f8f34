"""The example `fraud` between real servers, with verdict: a million payments, rules, card holders."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from examples import fraud
from examples.fraud_data import AlarmsTold, cards_of, compare, end_ms, holder_of, payments_of, rules_of
from examples.run_check import Verdict
from examples.run_feeds import KafkaFeed
from examples.run_files import ParquetFolder
from examples.run_stage import Stage
from examples.run_topic import TopicReader
from examples.servers import kafka_server, postgres_server

_PAYMENTS = 1_000_000
_PER_SECOND = 5_000  # feeding rate: two cores, with servers and feed, process about twice this rate
_PARTITIONS = 4


class Fraud(Stage):
    seconds = _PAYMENTS / _PER_SECOND

    def __init__(self, stack: contextlib.ExitStack, folder: Path, seconds: float) -> None:
        import psycopg

        payments = min(_PAYMENTS, round(seconds * _PER_SECOND))
        kafka = stack.enter_context(kafka_server())
        postgres = stack.enter_context(postgres_server())
        for topic, partitions in (("payments", _PARTITIONS), ("rules", 1), ("alarms", _PARTITIONS)):
            kafka.create_topic(topic, partitions=partitions)
        with psycopg.connect(postgres.url) as connection:
            connection.execute("CREATE TABLE holders (card text PRIMARY KEY, holder text)")
            with connection.cursor().copy("COPY holders FROM STDIN") as copy:
                for card in cards_of(payments):
                    copy.write_row((card, holder_of(card)))
        rows, self._answer = payments_of(payments)
        output = folder.parent / "run" / "output"
        self.servers = [kafka, postgres]
        self.flow = fraud.build(kafka.bootstrap, postgres.url, str(output))
        self.records = len(rows)
        rules = [msgspec.json.encode(row) for row in rules_of(payments)]
        self.feed = _FraudFeed(kafka.bootstrap, [msgspec.json.encode(row) for row in rows], rules, seconds)
        self._reader = stack.enter_context(contextlib.closing(TopicReader(kafka.bootstrap, "alarms")))
        self._told = AlarmsTold()
        self._judged, self._bad = ParquetFolder(output / "judged"), ParquetFolder(output / "bad")

    def visible_rows(self) -> int:
        """Number of visible rows. An alarm counts when all rows of the alarm are visible."""
        self._told.add(self._reader.read())
        return self._judged.count() + self._bad.count() + self._told.settled(self._answer)

    def expected_rows(self) -> int:
        return len(self._answer.judged) + len(self._answer.bad) + len(self._answer.alarms)

    def check(self) -> Verdict:
        self._told.add(self._reader.read())
        return compare(self._answer, self._judged.rows(), self._bad.rows(), self._told)


class _FraudFeed(KafkaFeed):
    """Sends payments and, at the pace of their times, rules."""

    def __init__(self, bootstrap: str, payments: Sequence[bytes], rules: Sequence[bytes], seconds: float) -> None:
        end = end_ms(len(payments))
        last = msgspec.json.encode({"id": -1, "card": "", "cents": 0, "at": end})
        super().__init__(bootstrap, "payments", _PARTITIONS, payments, seconds, last)
        self._rules = KafkaFeed(bootstrap, "rules", 1, rules, seconds, msgspec.json.encode({"at": end}))
        self._ratio = len(rules) / len(payments)

    @contextlib.contextmanager
    def sender(self) -> Iterator[Any]:
        with super().sender() as send_payments, self._rules.sender() as send_rules:

            def send(first: int, end: int) -> None:
                send_rules(round(first * self._ratio), round(end * self._ratio))
                send_payments(first, end)

            yield send
