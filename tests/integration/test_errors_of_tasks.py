"""The error of a Spark task whose Python cannot become a slot, as Spark's status has it."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError

from barrier_runtime.spark.stage import RoomOfJob
from tests.waiting import until

GROUP = "barrier-runtime-without-a-module"


def test_a_missing_module_is_read_from_sparks_task_status(spark: Any) -> None:
    context = spark.sparkContext

    def needs_a_module(_: Iterator[int]) -> Iterator[int]:
        import a_module_of_the_driver_alone  # noqa: F401

        return iter(())

    def submit() -> None:
        context.setLocalProperty("spark.jobGroup.id", GROUP)
        with contextlib.suppress(Py4JJavaError):  # cancelled below: Spark starts the task again for ever
            context.parallelize([0], 1).mapPartitions(needs_a_module).collect()

    submitting = threading.Thread(target=submit, daemon=True)
    submitting.start()
    room = RoomOfJob(spark, GROUP)
    error = "ModuleNotFoundError: No module named 'a_module_of_the_driver_alone'; give the executors the driver's"
    try:
        until(lambda: error in room.look().failing)
    finally:
        context._jsc.sc().cancelJobGroup(GROUP)
        submitting.join(60)
    assert not submitting.is_alive()
