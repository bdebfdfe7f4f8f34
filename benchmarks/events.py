"""The only generator of keyed events: row i is the same in all engines, sources and processes.

Columns: `key` (uniform in 0 … keys-1), `value` (uniform in 0 … 999), `at` (event time, ms) and `emitted` (intended
emission, ns), all int64. Key and value are splitmix64 of the row's number; the Java sources do the same arithmetic.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema([(name, pa.int64()) for name in ("key", "value", "at", "emitted")])
VALUES = 1_000
_BEGIN_NS = 1_700_000_000 * 10**9  # event time of a bounded input's first row

Ints = npt.NDArray[np.int64]


def mixed(numbers: Ints) -> npt.NDArray[np.uint64]:
    """splitmix64."""
    with np.errstate(over="ignore"):
        z = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed_up: npt.NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed_up


def columns(numbers: Ints, emitted_ns: Ints, keys: int) -> list[Ints]:
    """Rows `numbers`, due at `emitted_ns`, as columns."""
    random = mixed(numbers)
    key = ((random >> np.uint64(20)) % np.uint64(keys)).astype(np.int64)
    value = (random % np.uint64(VALUES)).astype(np.int64)
    return [key, value, emitted_ns // 1_000_000, emitted_ns]


def events(numbers: Ints, emitted_ns: Ints, keys: int) -> pa.RecordBatch:
    """Rows `numbers`, due at `emitted_ns`, in Arrow."""
    arrays = [pa.array(column) for column in columns(numbers, emitted_ns, keys)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def bounded(begin: int, end: int, keys: int, pace: int) -> pa.RecordBatch:
    """Rows `begin` … `end` - 1 of a bounded input, `pace` rows per second of event time."""
    numbers = np.arange(begin, end)
    return events(numbers, _BEGIN_NS + numbers * (10**9 // pace), keys)


def write_parquet(path: Path, rows: pa.RecordBatch) -> None:
    """Writes under a temporary name first, so that an existing file is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    pq.write_table(pa.Table.from_batches([rows]), part, compression="snappy")
    part.replace(path)


def as_json(batch: pa.RecordBatch) -> list[bytes]:
    """A JSON object per row."""
    columns = [batch.column(name).to_pylist() for name in ("key", "value", "at", "emitted")]
    return [
        b'{"key":%d,"value":%d,"at":%d,"emitted":%d}' % row  # %: three times as fast as a general encoder
        for row in zip(*columns, strict=True)
    ]
