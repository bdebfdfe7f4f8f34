"""Rows of two versions of a table as upserts: the deleted keys."""

from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime.connectors.source_bases.upserts import Upserts


@pytest.mark.parametrize(
    ("kind", "before", "after", "gone"),
    [
        (pa.float64(), [0.0, 1.0], [-0.0, 1.0], [0.0]),
        (pa.float64(), [float("nan"), 1.0], [float("nan")], [1.0]),
        (pa.timestamp("ns"), [1_000, 1_001], [1_000], [1_001]),
        (pa.time64("ns"), [1_000, 1_001], [1_001], [1_000]),
        (pa.string(), ["a", "A", "a "], ["A"], ["a", "a "]),
        (pa.int64(), [1, None], [None], [1]),
    ],
)
def test_a_key_is_gone_when_no_row_of_the_newer_version_has_it(
    kind: pa.DataType, before: list[Any], after: list[Any], gone: list[Any]
) -> None:
    files = {"before": pa.array(before, kind), "after": pa.array(after, kind)}
    upserts = Upserts(
        ["k"], lambda file, schema, _: [pa.record_batch([files[file]], schema=schema)], "the table", "source 's'"
    )
    table = pa.schema([("k", kind)])
    schema = upserts.schema(table)
    deleted, _ = upserts.changes(["before"], ["after"], 5)
    found = pa.concat_arrays([batch.column("k") for batch in upserts.rows(deleted, schema)])
    assert found.equals(pa.array(gone, kind))
