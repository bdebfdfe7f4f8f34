"""The error of a Spark task whose Python cannot become a slot, as Spark's status has it."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from barrier_runtime.spark.session import check_free_core, check_session
from barrier_runtime.spark.stage import RoomOfJob, SparkCarrier
from barrier_runtime.state.errors import InvalidJob
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


def test_cores_of_a_local_master_are_not_its_default_parallelism(spark: Any) -> None:
    """Many sessions set `spark.default.parallelism`, below or above the cores."""
    conf = spark.sparkContext._jsc.sc().conf()
    for said in ("2", "200"):
        conf.set("spark.default.parallelism", said)
        try:
            check_session(spark, 4)
            check_free_core(spark, 3)
            assert "Spark has 4 cores for 5 slots" in SparkCarrier(spark, own_session=False).described(5)
            with pytest.raises(InvalidJob, match=r"parallelism 5 needs 5 cores at once, .*local\[4\] has 4"):
                check_session(spark, 5)
            with pytest.raises(InvalidJob, match=r"needs a core beside the 4 slots, .* has 4"):
                check_free_core(spark, 4)
        finally:
            conf.remove("spark.default.parallelism")
