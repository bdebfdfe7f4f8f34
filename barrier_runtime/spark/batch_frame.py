"""The rows of one checkpoint as a DataFrame of the driver's session, for `for_each_batch`.

Storage that is a folder is read by Spark's tasks, file by file. Other storage is read by the driver, because Spark
would need Hadoop's classes and credentials for it; a batch must fit into the driver's memory then.
"""

from typing import Any

from barrier_runtime.connectors.batch_function.queue import BatchQueue
from barrier_runtime.connectors.sink_bases.decided_batch import DecidedBatch
from barrier_runtime.spark.session import total_cores
from barrier_runtime.state.errors import InvalidJob


class DataFrames:
    """Makes DataFrames of `spark`. The rows' order is kept within one subtask's file, no more than Spark keeps it."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def __call__(self, queue: BatchQueue, batch: DecidedBatch) -> Any:
        files = queue.local_files(batch)
        if files is not None:
            return self._spark.read.parquet(*files)
        return self._spark.createDataFrame(queue.read(batch))


def check_free_core(spark: Any, parallelism: int) -> None:
    """Raise `InvalidJob` where slots would occupy every core: what a function writes would wait for ever."""
    per_task = int(spark.sparkContext.getConf().get("spark.task.cpus", "1"))
    cores, needed = total_cores(spark), (parallelism + 1) * per_task
    if spark.sparkContext.master.startswith("local[") and cores < needed:
        raise InvalidJob(
            f"for_each_batch needs a core beside the {parallelism} slots, which keep theirs for the whole job, and the "
            f"Spark master has {cores}: use a smaller parallelism or local[{needed}]"
        )
