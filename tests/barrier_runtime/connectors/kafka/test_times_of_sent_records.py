"""Times of records sent to Kafka: milliseconds, rounded down."""

import pyarrow as pa
import pytest

from barrier_runtime.connectors.kafka.sink.records import RecordFormat
from barrier_runtime.connectors.kafka.sink.topic_limits import KafkaLimits
from barrier_runtime.state.errors import InvalidJob

MS = 1_700_000_000_000


def sent(times: pa.Array) -> list[int | None]:
    form = RecordFormat("topic", None, "value", {}, "at")
    limits = KafkaLimits(2, 1_000_000, 60_000, 60)
    form.open("here", limits, lambda topic: limits)
    (records,) = form.records([pa.record_batch({"value": ["a"] * len(times), "at": times})])
    found: list[int | None] = records.column("timestamp").to_pylist()
    return found


def test_finer_times_are_rounded_down() -> None:
    assert sent(pa.array([MS * 1_000 + 999, None], pa.timestamp("us"))) == [MS, None]
    assert sent(pa.array([MS * 1_000_000 + 999_999], pa.timestamp("ns", "UTC"))) == [MS]
    assert sent(pa.array([MS // 1_000], pa.timestamp("s"))) == [MS]
    with pytest.raises(InvalidJob, match="a row has the time -1 ms"):
        sent(pa.array([-1], pa.timestamp("ns")))


@pytest.mark.parametrize("times", [pa.array([2**64 // 1_000 + 1], pa.timestamp("s")), pa.array([2**63], pa.uint64())])
def test_a_time_beyond_64_bits_of_milliseconds_is_refused_and_not_wrapped(times: pa.Array) -> None:
    with pytest.raises(InvalidJob, match=r"here: column 'at' .*correct or filter such rows"):
        sent(times)
