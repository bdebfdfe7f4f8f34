"""Rows handed to Kafka's client: in order, whatever the client takes at once. The real client, without a broker."""

from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime.connectors.kafka.clients import client_log
from barrier_runtime.connectors.kafka.sink.records import handed_over

confluent_kafka = pytest.importorskip("confluent_kafka")
TIMES = pa.array([1_700_000_000_000] * 8)


class Client:
    """The real producer; notes the values that it took, in order."""

    def __init__(self, **settings: Any) -> None:
        log = {"bootstrap.servers": "127.0.0.1:1", "logger": client_log()}
        self.real = confluent_kafka.Producer({**log, **{key.replace("_", "."): v for key, v in settings.items()}})
        self.delivered: list[bytes] = []

    def delivery(self, error: Any, message: Any) -> None:
        self.delivered.append(message.value())

    def make_room(self) -> None:
        """Fails the waiting rows, so that the client has room again."""
        self.real.purge()
        self.real.poll(0)


def records(values: list[bytes | None], times: pa.Array | None = None) -> pa.RecordBatch:
    columns = {"key": pa.nulls(len(values), pa.binary()), "value": pa.array(values, pa.binary())}
    return pa.record_batch(columns if times is None else {**columns, "timestamp": times.slice(0, len(values))})


@pytest.mark.parametrize("times", [None, TIMES], ids=["as a batch", "each"])
def test_rows_behind_a_full_queue_follow_in_order(times: pa.Array | None) -> None:
    client = Client(queue_buffering_max_messages=3)
    waits = []

    def wait() -> None:
        waits.append(1)
        client.make_room()

    values = [b"%d" % number for number in range(8)]
    taken = list(handed_over(client.real, records(values, times), "t", wait, on_delivery=client.delivery))
    client.make_room()
    assert client.delivered == values
    assert [count for count in taken if count] == [3, 3, 2]
    assert len(waits) == 2


@pytest.mark.parametrize("times", [None, TIMES], ids=["as a batch", "each"])
def test_a_row_that_the_client_refuses_raises_its_reason(times: pa.Array | None) -> None:
    client = Client(message_max_bytes=2_000)
    with pytest.raises(confluent_kafka.KafkaException, match="size too large"):
        list(handed_over(client.real, records([b"1", b"x" * 5_000, b"3"], times), "t", client.make_room))


def test_rows_of_many_bytes_are_handed_over_a_few_at_a_time() -> None:
    """The client copies a batch while other threads wait for the interpreter."""
    client = Client()
    taken = list(handed_over(client.real, records([b"x" * (600 << 10)] * 5), "t", client.make_room))
    assert taken == [1, 1, 1, 1, 1]
    client.make_room()


def test_nulls_and_empty_values_stay_what_they_are() -> None:
    client = Client()
    list(handed_over(client.real, records([None, b"", b"a"]), "t", client.make_room, on_delivery=client.delivery))
    client.make_room()
    assert client.delivered == [None, b"", b"a"]
