"""Key columns and state keys: the way there and back, and the same key group from either form."""

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime.data.keys import KeyCodec, check_key_type
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.key_groups import key_group, key_groups_of

DAY = datetime.date(1969, 7, 20)
MOMENT = datetime.datetime(2013, 1, 1, 5, 15, 0, 123000)

COLUMNS = [
    pa.array([1, -5, None, 127], pa.int8()),
    pa.array([2**63 - 1, -(2**63), None], pa.int64()),
    pa.array([7, None, 2**32 - 1], pa.uint32()),
    pa.array([True, False, None]),
    pa.array(["é", "", None, "x" * 300]),
    pa.array(["é", None], pa.large_string()),
    pa.array([b"\x00", b"", None]),
    pa.array([0.0, -0.0, None, 1.5, -1e300]),
    pa.array([0.1, None], pa.float32()),
    pa.array([DAY, None], pa.date32()),
    pa.array([DAY, None], pa.date64()),
    pa.array([MOMENT, None], pa.timestamp("ms")),
    pa.array([MOMENT, None], pa.timestamp("us", "UTC")),
    pa.array([-1_000_001_000, None], pa.timestamp("ns")),
    pa.array([-7, None], pa.timestamp("s", "Europe/Paris")),
    pa.array(["x", None, "x"]).dictionary_encode(),
]


def codec_of(column: pa.Array) -> tuple[KeyCodec, pa.RecordBatch]:
    batch = pa.RecordBatch.from_pydict({"k": column})
    return KeyCodec(batch.schema, ["k"], "op"), batch


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_rows_are_sent_to_the_subtask_that_owns_their_state(column: pa.Array) -> None:
    codec, batch = codec_of(column)
    sent = key_groups_of([column], 32_768).tolist()
    assert sent == [key_group(key, 32_768) for key in codec.state_keys(batch)]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_state_keys_become_the_column_again(column: pa.Array) -> None:
    codec, batch = codec_of(column)
    back = codec.column(0, [key[0] for key in codec.state_keys(batch)])
    assert back.type == column.type
    assert back.to_pylist() == column.to_pylist()


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_a_timer_sees_the_key_that_the_row_saw(column: pa.Array) -> None:
    codec, batch = codec_of(column)
    state_keys = codec.state_keys(batch)
    assert [codec.user_key(key) for key in state_keys] == codec.user_keys(batch, state_keys)


@pytest.mark.parametrize(
    "column", [pa.array([decimal.Decimal(1)]), pa.array([[1]]), pa.array([{"a": 1}]), pa.array([datetime.time(1)])]
)
def test_a_type_that_cannot_be_a_key_is_named(column: Any) -> None:
    with pytest.raises(InvalidJob, match="which cannot be a key: cast it"):
        check_key_type(column.type, "k", "op")
