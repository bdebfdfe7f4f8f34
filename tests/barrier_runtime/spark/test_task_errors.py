"""Errors of Spark tasks whose Python never becomes a slot. The texts are those of Spark 4."""

import pytest

from barrier_runtime.spark.stage import FailedTask, essence, why_slots_fail

NO_PACKAGE = """org.apache.spark.SparkException: \nError from python worker:
  /usr/bin/python3.11: Error while finding module specification for 'barrier_runtime.spark.worker_daemon' \
(ModuleNotFoundError: No module named 'barrier_runtime')
PYTHONPATH was:
  /opt/spark/python/lib/pyspark.zip
org.apache.spark.SparkException: EOFException occurred while reading the port number from \
barrier_runtime.spark.worker_daemon's stdout.
\tat org.apache.spark.api.python.PythonWorkerFactory.startDaemon(PythonWorkerFactory.scala:310)
"""
OTHER_PYTHON = """org.apache.spark.SparkException: \nError from python worker:
  Traceback (most recent call last):
    File "/usr/lib/python3.12/re/_compiler.py", line 26, in <module>
      assert _sre.MAGIC == MAGIC, "SRE module mismatch"
  AssertionError: SRE module mismatch
PYTHONPATH was:
  /usr/lib/python3.11
org.apache.spark.SparkException: No port number in barrier_runtime.spark.worker_daemon's stdout
"""
NO_PYTHON = """java.io.IOException: Cannot run program "/home/ann/.venv/bin/python": error=2, No such file or directory
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
Caused by: java.io.IOException: error=2, No such file or directory
"""
NO_LIBRARY = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1818, in main
    func, profiler, deserializer, serializer = read_command(pickleSer, infile)
ModuleNotFoundError: No module named 'prices'
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (NO_PACKAGE, "ModuleNotFoundError: No module named 'barrier_runtime'"),
        (OTHER_PYTHON, "AssertionError: SRE module mismatch"),
        (NO_PYTHON, 'Cannot run program "/home/ann/.venv/bin/python": error=2, No such file or directory'),
        (NO_LIBRARY, "ModuleNotFoundError: No module named 'prices'"),
        ("ExecutorLostFailure (executor 1 exited)", "ExecutorLostFailure (executor 1 exited)"),
    ],
    ids=["no package", "other Python", "no Python", "no library", "no stack"],
)
def test_the_cause_is_the_line_that_the_executors_python_wrote(error, names):
    line = essence(error)
    assert names in line
    assert "\n" not in line
    assert "scala" not in line


def test_the_newest_error_is_told_with_host_and_remedy():
    failed = [FailedTask("worker-a", 2_000, NO_LIBRARY), FailedTask("worker-b", 3_000, NO_PACKAGE)]
    told = why_slots_fail(failed, 1_000)
    assert told.startswith("a slot's process failed 2 times, last on host worker-b: /usr/bin/python3.11: Error while")
    assert told.endswith("(PYSPARK_PYTHON with the same packages on each host, or spark.archives)")


def test_failures_before_slots_were_missing_are_none_of_a_start():
    failed = [FailedTask("worker-a", 2_000, "Python worker exited unexpectedly (crashed)")]
    assert why_slots_fail(failed, 2_001) == ""
    assert why_slots_fail(failed, 2_000) != ""


def test_a_process_that_another_replaced_has_no_error():
    ordered = "Unavailable: slot 1 leaves its job to another process: slot 1 is held by task attempt 7 now"
    assert why_slots_fail([FailedTask("worker-a", 5, ordered)], 0) == ""


def test_long_errors_are_shortened():
    assert len(essence("x" * 10_000)) == 400


OF_OURS = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/barrier_runtime/spark/task.py", line 87, in slot_place
    raise InvalidJob(
barrier_runtime.state.errors.InvalidJob: slot_host=0.0.0.0 means every interface of the host: name an address
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
"""


def test_an_error_of_ours_has_its_own_remedy():
    told = why_slots_fail([FailedTask("worker-a", 5, OF_OURS)], 0)
    assert told.endswith("slot_host=0.0.0.0 means every interface of the host: name an address")


@pytest.mark.parametrize(
    "error",
    [
        "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: exit code 137",
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n\tat org.apache.X(Y.scala:1)",
    ],
)
def test_a_killed_process_is_not_told_to_lack_packages(error):
    told = why_slots_fail([FailedTask("worker-a", 5, error)], 0)
    assert "PYSPARK_PYTHON" not in told
    assert "memory" in told
