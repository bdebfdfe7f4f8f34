"""Carrier of slots on Spark: plain `mapPartitions` stages, in which Spark replaces a single dead task.

While slots are missing, `RoomOfJob` asks Spark for the cores' holders: running jobs and, on a standalone cluster, other
applications on the master's page (`spark.master.ui.port`, 8080).
"""

import json
import logging
import re
import sys
import time
import traceback
import urllib.request
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

import msgspec

from barrier_runtime.connectors.memory.batch_function import MakeFrame
from barrier_runtime.coordinator.status.status import Room
from barrier_runtime.spark.session import (
    DataFrames,
    forwarded_environment,
    jvm_trouble,
    stop_session,
)
from barrier_runtime.spark.task import SlotSettings, expected, run_slot
from barrier_runtime.state.texts import shortened

log = logging.getLogger("barrier_runtime.job")


@dataclass(frozen=True)
class FailedTask:
    """A failed attempt to become a slot. `launched_ms`: on the driver's clock.
    `error`: Spark's text, with stacks of the JVM.
    """

    host: str
    launched_ms: int
    error: str


class SparkCarrier:
    """`own_session`: `close` stops the session."""

    def __init__(self, spark: Any, *, own_session: bool) -> None:
        self._spark = spark
        self._own_session = own_session

    def submit(self, settings: SlotSettings, slots: Sequence[int], group: str, hosts: Sequence[str] = ()) -> None:
        context = self._spark.sparkContext
        context.setLocalProperty("spark.jobGroup.id", group)
        context.setLocalProperty("spark.job.description", f"barrier-runtime {settings.name}")
        context.setLocalProperty("spark.job.interruptOnCancel", "true")
        self._slots_on(slots, hosts).mapPartitions(_slot_partition(settings)).collect()

    def _slots_on(self, slots: Sequence[int], hosts: Sequence[str]) -> Any:
        """A partition per slot. PySpark alone cannot name preferred hosts."""
        context = self._spark.sparkContext
        if not hosts:
            return context.parallelize(slots, len(slots))
        from pyspark import RDD
        from pyspark.serializers import CPickleSerializer

        jvm, serializer = context._jvm, CPickleSerializer()
        scala = jvm.scala.jdk.javaapi.CollectionConverters
        places = scala.asScala(list(hosts)).toSeq()
        placed = [jvm.scala.Tuple2(bytearray(serializer.dumps(slot)), places) for slot in slots]
        tag = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$").AnyRef()
        made = context._jsc.sc().makeRDD(scala.asScala(placed).toSeq(), tag)
        return RDD(made.toJavaRDD(), context, serializer)

    def cancel(self, group: str) -> None:
        self._spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(group)

    def kill(self, attempt: int, reason: str) -> bool:
        return bool(self._spark.sparkContext._jsc.sc().killTaskAttempt(attempt, True, reason))

    def elsewhere(self, attempt: int) -> tuple[str, ...]:
        per_slot = int(self._spark.sparkContext.getConf().get("spark.task.cpus", "1"))
        executors, ending = _executors(self._spark), self._decommissioned()
        own = [task for task in self._running() if task.taskId() == attempt]
        if not own:
            return ()
        hosts = hosts_with_room([each for each in executors if each.id() not in ending], per_slot)
        return tuple(sorted(hosts - {task.host() for task in own if task.executorId() not in ending}))

    def leaving(self, attempts: Collection[int]) -> dict[int, str]:
        ending = self._decommissioned()
        if not ending or not attempts:
            return {}
        own = [task for task in self._running() if task.executorId() in ending and task.taskId() in attempts]
        return {int(task.taskId()): str(task.host()) for task in own}

    def _decommissioned(self) -> set[str]:
        """Executors that take no more tasks, and end as soon as their tasks have ended."""
        context = self._spark.sparkContext
        if context.getConf().get("spark.decommission.enabled", "false").strip().lower() != "true":
            return set()
        scheduler = context._jsc.sc().taskScheduler()
        ids = [str(each.id()) for each in _executors(self._spark)]
        return {each for each in ids if scheduler.getExecutorDecommissionState(each).isDefined()}

    def _running(self) -> list[Any]:
        tasks = (task for job in _jobs(self._spark) for task in _tasks(self._spark, job, _MOST_TASKS))
        return [task for task in tasks if task.status() == "RUNNING"]

    @property
    def one_host(self) -> bool:
        return False

    def trouble(self) -> Exception | None:
        return jvm_trouble(self._spark)

    def room(self, groups: str) -> "RoomOfJob":
        return RoomOfJob(self._spark, groups)

    def described(self, slots: int) -> str:
        return (
            f"Spark has {cores_of_application(self._spark)} cores for {slots} slots; every slot occupies "
            "spark.task.cpus of them for the whole job: free some, add executors or use a smaller parallelism"
        )

    @property
    def frames(self) -> MakeFrame:
        return DataFrames(self._spark)

    @property
    def environment(self) -> dict[str, str]:
        return forwarded_environment()

    def close(self) -> None:
        if self._own_session:
            stop_session(self._spark)


def _last_words(slot: int, error: Exception, verbose: bool) -> str:
    if expected(error) and not verbose:
        return f"barrier-runtime: slot {slot} begins again: {error}"
    return f"barrier-runtime: slot {slot} failed:\n{''.join(traceback.format_exception(error))}"


def _slot_partition(settings: SlotSettings) -> Callable[[Any], Any]:
    def partition(indices: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for slot in indices:
            try:
                yield run_slot(slot, context.taskAttemptId(), settings)
            except Exception as error:
                # Our sessions silence Spark's report of the error.
                print(_last_words(slot, error, settings.options.verbose), file=sys.stderr, flush=True)
                raise

    return partition


_MASTER = re.compile(r"spark://([^:/,\s]+):(\d+)")
_NEWEST_TASKS = 64
_MOST_TASKS = 4_096  # the most slots, and failed attempts
_ASKED_S = 1.0
_MOST_BYTES = 4_000_000
_OURS = "barrier-runtime "


class RoomOfJob:
    def __init__(self, spark: Any, group: str) -> None:
        self._spark = spark
        self._group = group
        self._failures: int | None = None
        self.complete()

    def complete(self) -> None:
        self._complete_ms = time.time_ns() // 1_000_000
        self._failing = ""

    def look(self) -> Room:
        """Cores, holders, and the newest error of tasks since the last `complete`; logs the first error.

        `starting` is 0 if a task failed since the last look: such slots do not start.
        """
        found, active, failures = room(self._spark, self._group), 0, 0
        failed: list[FailedTask] = []
        for job in _jobs(self._spark):
            if _group_of(job).startswith(self._group):
                active += int(job.numActiveTasks())
                failures += int(job.numFailedTasks()) + int(job.numKilledTasks())
                if job.numFailedTasks():
                    failed += _failed_tasks(self._spark, job)
        before, self._failures = self._failures, failures
        starting = active if failures in (0, before) else 0
        failing = why_slots_fail(failed, self._complete_ms)
        if failing and not self._failing:
            log.warning("%s", failing)
        self._failing = failing
        return msgspec.structs.replace(found, starting=starting, failing=failing)


def room(spark: Any, group: str) -> Room:
    context = spark.sparkContext
    conf = context.getConf()
    per_slot = int(conf.get("spark.task.cpus", "1"))
    cores = cores_of_application(spark)
    held = held_in_application(spark, group, per_slot)
    most = conf.get("spark.cores.max")
    if most is None or int(most) > cores:  # the application could get more cores of the cluster
        cluster = cluster_of(context.master, int(conf.get("spark.master.ui.port", "8080")), context.applicationId)
        if cluster is not None:
            cores, others = cluster
            held += others
    return Room(cores, per_slot, dict(held))


def cores_of_application(spark: Any) -> int:
    return sum(int(each.totalCores()) for each in _executors(spark))


def hosts_with_room(executors: Iterable[Any], per_slot: int) -> set[str]:
    return {
        each.hostPort().rpartition(":")[0]
        for each in executors
        if int(each.totalCores()) - int(each.activeTasks()) * per_slot >= per_slot
    }


def _executors(spark: Any) -> list[Any]:
    context = spark.sparkContext
    executors = context._jsc.sc().statusStore().executorList(True)
    found = [executors.apply(index) for index in range(executors.size())]
    local = context.master.startswith("local") and not context.master.startswith("local-cluster")
    return [each for each in found if (each.id() == "driver") == local]


def held_in_application(spark: Any, group: str, per_task: int) -> "Counter[str]":
    held: Counter[str] = Counter()
    for job in _jobs(spark):
        if job.numActiveTasks() > 0 and not _group_of(job).startswith(group):
            name = job.description().get() if job.description().isDefined() else job.name()
            held[_name(name)] += int(job.numActiveTasks()) * per_task
    return held


def _jobs(spark: Any) -> Iterator[Any]:
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return (jobs.apply(index) for index in range(jobs.size()))


def _failed_tasks(spark: Any, job: Any) -> Iterator[FailedTask]:
    for task in _tasks(spark, job):
        if task.status() == "FAILED" and task.errorMessage().isDefined():
            yield FailedTask(task.host(), int(task.launchTime().getTime()), task.errorMessage().get())


def _tasks(spark: Any, job: Any, most: int = _NEWEST_TASKS) -> Iterator[Any]:
    """Newest tasks of a job."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    store = spark.sparkContext._jsc.sc().statusStore()
    stages = job.stageIds()
    for number in (stages.apply(index) for index in range(stages.size())):
        try:
            attempt = store.lastStageAttempt(number).attemptId()
        except Py4JJavaError as error:
            if "NoSuchElement" not in error.java_exception.getClass().getName():
                raise
            continue
        tasks = store.taskList(number, attempt, most)  # newest first
        yield from (tasks.apply(index) for index in range(tasks.size()))


def _group_of(job: Any) -> str:
    return job.jobGroup().get() if job.jobGroup().isDefined() else ""


def cluster_of(master: str, ui_port: int, application: str) -> "tuple[int, Counter[str]] | None":
    """Cores of a standalone cluster, and of other applications by name; None: other cluster, no answer."""
    found = _MASTER.match(master)
    if found is None:
        return None
    try:
        with urllib.request.urlopen(f"http://{found[1]}:{ui_port}/json/", timeout=_ASKED_S) as answer:
            told = json.loads(answer.read(_MOST_BYTES))
        if told["url"] != found[0]:
            return None
        others = [each for each in told["activeapps"] if each["id"] != application]
        return int(told["cores"]), Counter(
            {_name(each["name"]): int(each["cores"]) for each in others if each["cores"]}
        )
    except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError):  # also from another server
        return None


def _name(name: str) -> str:
    return name.removeprefix(_OURS)


_LONGEST = 400
_OF_ENVIRONMENT = (
    "give the executors the driver's environment (PYSPARK_PYTHON with the same packages on each host, "
    "or spark.archives)"
)
_OF_DEATH = (
    "see the log of the executor: was it killed for its memory? Slots use memory beside the JVM's "
    "(spark.executor.memoryOverhead)"
)
_DEATHS = ("ExecutorLostFailure", "Python worker exited unexpectedly", "OutOfMemoryError")
_OURS_RAISED = "barrier_runtime.state.errors."
_OF_THE_JVM = re.compile(r"\n\s*at [\w.$]+[\w.$/<>]*\(")
_DAEMON = "Error from python worker:"
_DAEMON_ENDS = "PYTHONPATH was:"
_CLASS = "SQLSTATE:"
_ORDERED = "leaves its job to another process"  # in the error of `task.result_of`


def why_slots_fail(failed: Iterable[FailedTask], since_ms: int) -> str:
    """Newest error of attempts since `since_ms`, with host and remedy (errors of ours have their own), or ""."""
    new = [task for task in failed if task.launched_ms >= since_ms and task.error and _ORDERED not in task.error]
    if not new:
        return ""
    newest = max(new, key=lambda task: task.launched_ms)
    times = f"{len(new)} times, last " if len(new) > 1 else ""
    line = essence(newest.error)
    return f"a slot's process failed {times}on host {newest.host}: {line}{_remedy(line)}"


def _remedy(line: str) -> str:
    if _OURS_RAISED in line:
        return ""
    return f"; {_OF_DEATH if any(each in line for each in _DEATHS) else _OF_ENVIRONMENT}"


def essence(error: str) -> str:
    """Last line of Python's output, else the error's first line."""
    if _DAEMON in error:
        text = error.partition(_DAEMON)[2].partition(_DAEMON_ENDS)[0]
    else:
        text = _OF_THE_JVM.split(error, maxsplit=1)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith(_CLASS)]
    line = lines[-1] if lines else error.strip().partition("\n")[0]
    return shortened(line, _LONGEST)
