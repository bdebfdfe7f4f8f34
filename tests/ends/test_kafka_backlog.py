"""The benchmark's rows of a backlog in a real broker, and the answers of our flows over them."""

from functools import partial
from typing import Any

from barrier_runtime.connectors.memory.collect import CollectSink
from benchmarks.backlog_rows import fill, records, table
from benchmarks.engines.ours import read
from benchmarks.spec import RunSpec
from benchmarks.workloads import workload
from examples.servers import KafkaServer

ROWS = 300


def rows_of(work: str, server: KafkaServer, topic: str) -> list[dict[str, Any]]:
    spec = RunSpec(
        engine="ours", workload=work, measure="throughput", source="kafka", sink="discard", rows=ROWS,
        bootstrap=server.bootstrap, topic_in=topic,
    )  # fmt: skip
    sink = CollectSink()
    flow, result = workload(work).flow(partial(read, spec))
    result.sink("out", sink)
    flow.run_local(parallelism=2)
    return sink.rows()


def filled(server: KafkaServer, topic: str, wide: bool) -> str:
    server.create_topic(topic, 2)
    fill(server.bootstrap, topic, 2, ROWS, wide)
    return topic


def test_every_row_of_a_backlog_is_read_as_bytes_and_summed_by_the_text(kafka: KafkaServer) -> None:
    topic = filled(kafka, "backlog-rows", wide=False)
    assert sorted(row["value"] for row in rows_of("backlog-bytes", kafka, topic)) == sorted(records(0, ROWS))
    last = {row["customer"]: (row["n"], row["total"]) for row in sorted(rows_of("backlog-sums", kafka, topic), key=_n)}
    grouped = table(0, ROWS).group_by("customer").aggregate([([], "count_all"), ("amount", "sum")])
    columns = (grouped[name].to_pylist() for name in ("customer", "count_all", "amount_sum"))
    assert last == {customer: (n, total) for customer, n, total in zip(*columns, strict=True)}


def test_every_wide_row_of_a_backlog_is_read(kafka: KafkaServer) -> None:
    topic = filled(kafka, "backlog-wide-rows", wide=True)
    assert sorted(row["id"] for row in rows_of("backlog-wide", kafka, topic)) == table(0, ROWS)["id"].to_pylist()


def _n(row: dict[str, Any]) -> int:
    return int(row["n"])
