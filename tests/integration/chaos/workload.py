"""The job under fire and the truth about it: numbered records through two shuffles into two exactly-once file sinks.

Record `value` is number `value // SPLITS` of split `value % SPLITS`. The first shuffle counts the records of a key row
by row, the second keeps count and sum of a group. `SPLITS` divides `KEYS`, so all records of a key come from the same
split, and the right count of a record follows from the record's number alone: `value // KEYS + 1`. `SPLITS` does not
divide `GROUPS`: the records of a group come from all splits in no given order, and only the sequence of each split
shows whether the order was kept.
"""

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime import Dataflow, JsonlSink, KafkaSink, ParquetSink, ValueState, count, sum_

JOB = "chaos"
SPLITS = 4
KEYS = 600
GROUPS = 7
COUNTED = "counted"  # Parquet, after the first shuffle
TOTALS = "totals"  # JSON lines, after the second
TOPIC = "counted-topic"  # Kafka, if the job has brokers: the rows of `COUNTED`
PARTITIONS = 2


class Count:
    """Numbers the records of each key: 1, 2, 3, …"""

    reached = ValueState(int, default=0)

    def process(self, key, row, ctx):
        n = self.reached.value + 1
        self.reached.value = n
        return {"value": row["value"], "key": key, "group": key % GROUPS, "due_ns": row["due_ns"], "n": n}


def build(target: str, rows_per_second: float, bootstrap: str = "") -> Dataflow:
    flow = Dataflow(JOB)
    records = flow.rate("records", rows_per_second, keys=KEYS, splits=SPLITS)
    due = records.select({"value": "value", "key": "key", "due_ns": pc.field("intended_at").cast(pa.int64())})
    counted = due.key_by("key").process(
        "count", Count, schema={"value": int, "key": int, "group": int, "due_ns": int, "n": int}
    )
    counted.sink(COUNTED, ParquetSink(target))
    if bootstrap:
        counted.sink(TOPIC, KafkaSink(bootstrap, TOPIC, key="key"))
    totals = counted.key_by("group").aggregate("total", m=count(), total=sum_("value"))
    totals.sink(TOTALS, JsonlSink(target))
    return flow
