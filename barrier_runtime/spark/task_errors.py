"""Errors of Spark tasks that were to become slots, for people. Pure.

A Python that cannot start, or cannot import the package or the program, never reaches the coordinator: the error is
only in Spark's status of the task, inside the stack of the JVM.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_LONGEST = 400  # characters of an error
_REMEDY = (
    "give the executors the driver's environment (PYSPARK_PYTHON with the same packages on each host, "
    "or spark.archives)"
)
_OF_THE_JVM = re.compile(r"\n\s*at [\w.$]+[\w.$/<>]*\(")
_DAEMON = "Error from python worker:"  # Spark's, before the output of a Python that ended at its start
_DAEMON_ENDS = "PYTHONPATH was:"
_CLASS = "SQLSTATE:"  # Spark's class of an error, after the output of Python
_ORDERED = "leaves its job to another process"  # of `task.result_of`: a process that another replaced


@dataclass(frozen=True)
class FailedTask:
    """A failed attempt. `launched_ms`: on the driver's clock. `error`: Spark's text, with stacks."""

    host: str
    launched_ms: int
    error: str


def why_slots_fail(failed: Iterable[FailedTask], since_ms: int) -> str:
    """Returns the newest error of attempts launched since `since_ms`, with host and remedy; "" if there is none."""
    new = [task for task in failed if task.launched_ms >= since_ms and task.error and _ORDERED not in task.error]
    if not new:
        return ""
    newest = max(new, key=lambda task: task.launched_ms)
    times = f"{len(new)} times, last " if len(new) > 1 else ""
    return f"a slot's process failed {times}on host {newest.host}: {essence(newest.error)}; {_REMEDY}"


def essence(error: str) -> str:
    """Returns the line of Spark's text that names the cause: the last line of Python's output, else the first line."""
    if _DAEMON in error:
        text = error.partition(_DAEMON)[2].partition(_DAEMON_ENDS)[0]
    else:
        text = _OF_THE_JVM.split(error, maxsplit=1)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith(_CLASS)]
    line = lines[-1] if lines else error.strip().partition("\n")[0]
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
