"""The workloads of the table of backlogs, over the rows of `backlog_rows`.

The view `events` has the records' bytes (`backlog-bytes`) or their columns. Results do not have the column `emitted`,
because no latency is measured.
"""

import pyarrow as pa

from barrier_runtime import count, sum_
from barrier_runtime.api.dataflow import Stream
from benchmarks.backlog_rows import SCHEMA, WIDE_SCHEMA
from benchmarks.workloads import Workload


def _as_read(rows: Stream) -> Stream:
    return rows


def _sums(rows: Stream) -> Stream:
    return rows.key_by("customer").aggregate("sums", n=count(), total=sum_("amount"))


BYTES = Workload(
    "backlog-bytes", "bytes of a record", "SELECT * FROM events", "SELECT * FROM events", _as_read, "append",
    input="backlog",
)  # fmt: skip
COLUMNS = Workload(
    "backlog-columns", "all columns", "SELECT * FROM events", "SELECT * FROM events", _as_read, "append",
    input="backlog",
)  # fmt: skip
SUMS = Workload(
    "backlog-sums",
    "running count and sum by a text",
    "SELECT customer, count(*) AS n, sum(amount) AS total FROM events GROUP BY customer",
    "SELECT customer, COUNT(*) AS n, SUM(amount) AS total FROM events GROUP BY customer",
    _sums,
    "update",
    group=("customer",),
    input="backlog",
)
WIDE = Workload(
    "backlog-wide", "all of 200 columns", "SELECT * FROM events", "SELECT * FROM events", _as_read, "append",
    input="backlog",
)  # fmt: skip
WORKLOADS = (BYTES, COLUMNS, SUMS, WIDE)


def schema_of(workload: str) -> pa.Schema | None:
    """Columns of the view `events`; None: only the records' bytes, as `value`."""
    return {BYTES.name: None, WIDE.name: WIDE_SCHEMA}.get(workload, SCHEMA)
