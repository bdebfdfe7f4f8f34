"""Dictionaries and views of text, at the top level and inside other types, become their values; plain columns stay."""

import pyarrow as pa
import pytest

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.plain_rows import PlainRows, plain_schema
from barrier_runtime.graph.job_graph import Edge
from barrier_runtime.runtime.network.channels import InputChannel, LocalOutput, ResultPartition
from barrier_runtime.state.errors import InvalidJob

WORDS = pa.array(["a", "b", None, "a"]).dictionary_encode()
NUMBERS = pa.array([1, 2, 3, 4])
VIEWS = pa.array(["a", "b", None, "a text that is longer than what a view holds itself"], pa.string_view())
NESTED = {
    "top": WORDS,
    "struct": pa.StructArray.from_arrays([WORDS, NUMBERS], ["w", "n"]),
    "list": pa.ListArray.from_arrays([0, 1, 1, 3, 4], WORDS),
    "large_list": pa.LargeListArray.from_arrays([0, 1, 1, 3, 4], WORDS),
    "fixed": pa.FixedSizeListArray.from_arrays(WORDS, 1),
    "map": pa.MapArray.from_arrays([0, 1, 2, 3, 4], NUMBERS, WORDS),
    "deep": pa.ListArray.from_arrays([0, 1, 1, 3, 4], pa.StructArray.from_arrays([WORDS, NUMBERS], ["w", "n"])),
    "of_structs": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None, 0], pa.int8()), pa.StructArray.from_arrays([WORDS, NUMBERS], ["w", "n"])
    ),
    "text": VIEWS,
    "bytes": VIEWS.cast(pa.string()).cast(pa.binary()).cast(pa.binary_view()),
    "a_struct": pa.StructArray.from_arrays([VIEWS, NUMBERS], ["w", "n"]),
    "a_list": pa.ListArray.from_arrays([0, 1, 1, 3, 4], VIEWS),
}


@pytest.mark.parametrize("name", NESTED)
def test_values_stay_and_no_dictionary_or_view_is_left(name):
    rows = pa.record_batch({"n": NUMBERS, name: NESTED[name]}).slice(1)
    plain = PlainRows()(rows)
    assert plain.to_pylist() == rows.to_pylist()
    assert "dictionary" not in str(plain.schema)
    assert "_view" not in str(plain.schema)
    assert plain.schema.equals(plain_schema(rows.schema))
    plain.validate(full=True)
    assert pa.ipc.read_record_batch(plain.serialize(), plain.schema).equals(plain), "so it can be sent"


def test_metadata_and_what_may_not_be_null_stay():
    field = pa.field("w", WORDS.type, nullable=False, metadata={"a": "b"})
    schema = pa.schema([field], {"who": "me"})
    found = PlainRows()(pa.RecordBatch.from_arrays([WORDS.drop_null()], schema=schema)).schema
    assert found.equals(pa.schema([field.with_type(pa.string())], {"who": "me"}), check_metadata=True)


def test_plain_rows_are_handed_through_untouched_and_looked_at_once_per_schema():
    plain = PlainRows()
    rows = pa.record_batch({"n": NUMBERS, "s": pa.StructArray.from_arrays([NUMBERS], ["n"])})
    assert plain(rows) is rows
    assert plain(rows) is rows
    assert plain_schema(rows.schema) is rows.schema


def test_a_schema_that_changes_is_decided_anew():
    plain = PlainRows()
    assert plain(pa.record_batch({"c": WORDS})).schema.field("c").type == pa.string()
    rows = pa.record_batch({"c": NUMBERS})
    assert plain(rows) is rows
    assert plain(pa.record_batch({"c": WORDS})).schema.field("c").type == pa.string()


def test_what_enters_a_local_edge_is_plain_as_on_a_connection():
    edge = Edge(0, 0, 1, "forward")
    channel = InputChannel(0, 0, lambda: None, 1_000_000)
    ResultPartition(edge, [LocalOutput(channel, lambda: None)], 0, 128).emit(Batch(pa.record_batch({"w": WORDS}), 5))
    batch = channel.pop()
    assert isinstance(batch, Batch)
    assert (batch.rows.schema.field("w").type, batch.emit_ns) == (pa.string(), 5)


@pytest.mark.slow
def test_a_row_that_is_too_large_names_the_operator_that_gave_it():
    class Full:
        writable = True

        def send(self, element):
            from barrier_runtime.runtime.network.frames import FrameWriter

            FrameWriter().encode(element)

    rows = pa.record_batch({"v": pa.array([b"x" * (64 * 1024 * 1024 + 1)])})
    with pytest.raises(InvalidJob, match="operator 'photos': a row of 67,1"):
        ResultPartition(Edge(0, 0, 1, "forward"), [Full()], 0, 128, "photos").emit(Batch(rows, 0))
