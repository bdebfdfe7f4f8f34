"""Latency from Kafka to Kafka as the broker sees records: from emission to the append of the output record.

    python -m benchmarks.kafka_to_kafka [--guarantee at_least_once] [--rate 10000] [--bytes 1200] [--interval 1]

Workload A of the real-time benchmarks, without a cut: a feeder process writes records at an even pace, a job on Spark
(two slots) copies the values, and the output topic stamps records with the time of the append (1 ms resolution). With
exactly once, readers see a record somewhat later than the append: when its transaction ends. Prints a line per run.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from barrier_runtime import Dataflow, KafkaSink
from benchmarks.broker import PARTITIONS, broker
from benchmarks.machine import describe

_FOLDER = Path("build/bench/kafka-to-kafka")
_TURN_S = 0.001
_STAMP_BYTES = 8
_FEEDER = {"linger.ms": 1, "acks": "1", "max.in.flight": 5, "queue.buffering.max.kbytes": 1 << 20}


def feed(bootstrap: str, topic: str, rate: float, size: int, seconds: float) -> None:
    """Sends records at an even pace; the first 8 bytes are the intended time of emission (ns, big-endian)."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, **_FEEDER})
    producer.list_topics(topic, timeout=30)
    rest, began_ns, sent = os.urandom(size - _STAMP_BYTES), time.time_ns(), 0
    while sent < rate * seconds:
        due = min(int((time.time_ns() - began_ns) * rate / 1e9) + 1, int(rate * seconds))
        for number in range(sent, due):
            stamp = began_ns + int(number * 1e9 / rate)
            producer.produce(topic, stamp.to_bytes(_STAMP_BYTES, "big") + rest, partition=number % PARTITIONS)
        sent = max(sent, due)
        producer.poll(0)
        time.sleep(_TURN_S)
    producer.flush(60)


def latencies_ms(bootstrap: str, topic: str, rows: int, skipped: int) -> Any:
    """Latencies of the output records of `topic`, sorted; waits for `rows` records, omits the first `skipped`."""
    from confluent_kafka import Consumer, TopicPartition

    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "isolation.level": "read_committed"})
    reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[tuple[int, int]] = []
    deadline = time.monotonic() + 120
    while len(found) < rows and time.monotonic() < deadline:
        for message in reader.consume(10_000, timeout=0.2):
            if message.error() is None:
                found.append((int.from_bytes(message.value()[:_STAMP_BYTES], "big"), message.timestamp()[1]))
    reader.close()
    found.sort()
    return np.sort(np.array([appended - emitted / 1e6 for emitted, appended in found[skipped:]]))


def measure(chosen: argparse.Namespace) -> None:
    shutil.rmtree(_FOLDER, ignore_errors=True)
    rows = int(chosen.rate * (chosen.warm_up + chosen.seconds))
    spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
    with broker() as kafka:
        kafka.create_topic("in", PARTITIONS)
        kafka.create_topic("out", PARTITIONS, message_timestamp_type="LogAppendTime")
        flow = Dataflow("copy")
        records = flow.read_kafka("in", kafka.bootstrap, "in", group="bench", value="bytes", start="earliest")
        records.select(["value"]).sink(
            "out", KafkaSink(kafka.bootstrap, "out", value="value", guarantee=chosen.guarantee)
        )
        with flow.start(
            spark=spark,
            parallelism=2,
            checkpoints=str(_FOLDER.resolve()),
            checkpoint_interval=chosen.interval,
        ) as handle:
            while handle.status().phase != "running":
                time.sleep(0.05)
            arguments = [kafka.bootstrap, "in", chosen.rate, chosen.bytes, chosen.warm_up + chosen.seconds]
            subprocess.run(
                [sys.executable, "-m", "benchmarks.kafka_to_kafka", "--feed", *map(str, arguments)], check=True
            )
            time.sleep(2 * chosen.interval + 1)
            visible = handle.status().latency.get("out:visible")
            handle.stop()
        found = latencies_ms(kafka.bootstrap, "out", rows, int(chosen.rate * chosen.warm_up))
    spark.stop()
    p50, p99 = np.percentile(found, [50, 99])
    metric = "" if visible is None else f"; metric with warm-up {visible.p50:.1f} / {visible.p99:.1f}"
    print(
        f"{chosen.guarantee}, {chosen.rate:,.0f}/s of {chosen.bytes} bytes, checkpoints every {chosen.interval} s: "
        f"{len(found):,} records, p50 / p99 {p50:.1f} / {p99:.1f} ms{metric}"
    )


def main() -> None:
    if sys.argv[1:2] == ["--feed"]:
        bootstrap, topic, rate, size, seconds = sys.argv[2:]
        feed(bootstrap, topic, float(rate), int(size), float(seconds))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--guarantee", choices=["exactly_once", "at_least_once"], default="at_least_once")
    parser.add_argument("--rate", type=float, default=10_000, help="records per second")
    parser.add_argument("--bytes", type=int, default=1_200, help="of a value")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between checkpoints")
    parser.add_argument("--seconds", type=float, default=20, help="measured, after the warm-up")
    parser.add_argument("--warm-up", type=float, default=10, help="seconds")
    print(describe())
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
