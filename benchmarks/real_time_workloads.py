"""The workloads of the real-time table, over records of 1,200 bytes (`records.py`), Kafka to Kafka.

`rtm-a` is stateless (base64), `rtm-b` counts per value behind a shuffle, `rtm-c` joins a static table of 10,000 rows.
Each result has `key` (the record's, which carries the intended emission) and `value`. The SQL is Spark's; Flink and
Kafka Streams run the programs of the same names in `engines/java`.
"""

from barrier_runtime import count
from barrier_runtime.api.dataflow import Stream
from benchmarks.records import ID_DIGITS, static_table
from benchmarks.workloads import Workload

NAMES_VIEW = "names"


def _base64(records: Stream) -> Stream:
    return records.select({"key": "key", "value": "base64(value)"})


def _counted(records: Stream) -> Stream:
    counts = records.key_by("value").aggregate("counts", n=count())
    return counts.select({"key": "key", "value": "concat(cast(n as string), ' ', value)"})


def _joined(records: Stream) -> Stream:
    keyed = records.with_columns(id=f"substr(value, 1, {ID_DIGITS})")
    joined = keyed.broadcast_join("names", static_table(), on="id", how="inner")
    return joined.select({"key": "key", "value": "concat(name, ' ', value)"})


RTM_A = Workload(
    "rtm-a",
    "base64 of a record's value",
    "SELECT key, base64(value) AS value FROM events",
    "program",
    _base64,
    "append",
    input="records",
)
RTM_B = Workload(
    "rtm-b",
    "running count per value, behind a shuffle",
    "SELECT max(key) AS key, concat(string(count(*)), ' ', value) AS value FROM events GROUP BY events.value",
    "program",
    _counted,
    "update",
    input="records",
)
RTM_C = Workload(
    "rtm-c",
    "join with a static table of 10,000 rows",
    f"SELECT /*+ BROADCAST({NAMES_VIEW}) */ key, concat(name, ' ', value) AS value FROM events "
    f"JOIN {NAMES_VIEW} ON substr(value, 1, {ID_DIGITS}) = id",
    "program",
    _joined,
    "append",
    input="records",
)
WORKLOADS = (RTM_A, RTM_B, RTM_C)
