"""A stream on moto's Kinesis, and the test's operations on the stream."""

import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Any

from moto.core.exceptions import JsonRESTError

from barrier_runtime.connectors.kinesis.reader import KinesisReader
from barrier_runtime.connectors.kinesis.source import KinesisSource, KinesisStream


class KinesisWorld:
    """A stream. `faults`: errors for the next record requests, oldest first; None: no error.

    `behind_ms`: ages of the newest record, which the next answers tell.
    """

    def __init__(self, endpoint: str, shards: int) -> None:
        import boto3

        self.endpoint = endpoint
        self.name = f"stream-{uuid.uuid4().hex[:12]}"
        self.faults: deque[Exception | None] = deque()
        self.behind_ms: deque[int] = deque()
        self.client = boto3.client("kinesis", endpoint_url=endpoint, region_name="us-east-1")
        self.client.create_stream(StreamName=self.name, ShardCount=shards)

    def put(self, values: Sequence[bytes]) -> None:
        """The value is also the partition key, so that rows go to all shards."""
        for begin in range(0, len(values), 500):
            records = [{"Data": each, "PartitionKey": each.decode()} for each in values[begin : begin + 500]]
            self.client.put_records(StreamName=self.name, Records=records)

    def split(self, shard: str) -> None:
        """In the middle."""
        self.client.split_shard(StreamName=self.name, ShardToSplit=shard, NewStartingHashKey=str(1 << 126))

    def source(self, **options: Any) -> KinesisSource:
        return KinesisSource(self.name, region="us-east-1", endpoint=self.endpoint, **options)

    def stream(self, **options: Any) -> KinesisStream:
        return self.source(**options).named("clicks")

    def answer(self) -> None:
        fault = self.faults.popleft() if self.faults else None
        if fault is not None:
            raise fault


def refusal(code: str) -> JsonRESTError:
    return JsonRESTError(code, "as a test wishes")


def taken(reader: KinesisReader, count: int, max_rows: int = 1_000_000) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    woken = threading.Event()
    reader.wake_by(woken.set)
    while len(rows) < count and not reader.finished:
        woken.clear()
        polled = reader.poll(min(max_rows, count - len(rows)), time.time_ns())
        if polled is None:
            woken.wait(0.05)
        else:
            assert not isinstance(polled.rows, list)
            rows += polled.rows.to_pylist()
    return rows
