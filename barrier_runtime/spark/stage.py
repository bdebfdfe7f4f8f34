"""Spark jobs that carry the slots: plain `mapPartitions` stages, submitted again when Spark gives up.

Spark replaces a single dead task. This file starts the stages, kills the task of a slot that the coordinator has
given up, and submits a new job if a whole job failed while the coordinator still wants its slots. The first Spark
job has all slots that the program starts with. Each slot that is added later, also for a replacing program, has a
Spark job of its own (`AllSlots`), so that the driver knows whether the slot still runs. A slot that is no longer
needed leaves: its task succeeds, and Spark has the core back.

While slots are missing, `RoomOfJob` asks Spark for the number of cores and their holders: running jobs of this
application and, on a standalone cluster, the other applications on the master's page (`spark.master.ui.port`, 8080;
omitted if the page does not answer). Other cluster managers are not asked.
"""

import json
import logging
import re
import sys
import threading
import time
import traceback
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import msgspec

from barrier_runtime.coordinator.status.status import JobStatus, Room, StandbysWanted
from barrier_runtime.spark.task import SlotSettings, expected, run_slot
from barrier_runtime.spark.task_errors import FailedTask, why_slots_fail

log = logging.getLogger("barrier_runtime.job")

_FIRST_DELAY_S = 0.2
_MAX_DELAY_S = 30.0
_QUIET_S = 60.0  # a job that lived this long resets the back-off


class SlotTasks:
    """One Spark job with slots.

    `wanted()` returns the slots of this job that the coordinator still wants, before a failed job is submitted
    again."""

    def __init__(
        self,
        spark: Any,
        settings: SlotSettings,
        slots: Sequence[int],
        wanted: Callable[[], Sequence[int]],
        group: str = "",
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._slots = tuple(slots)
        self._wanted = wanted
        self._group = f"{_group(settings)}{group}"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="barrier-spark-job", daemon=True)
        self.last_failure = ""
        self.submissions = 0

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def given_up(self) -> bool:
        return self._stopping.is_set()

    def kill_task(self, task_attempt: int, reason: str) -> bool:
        """Asks Spark to kill one slot's task and start a replacement. False if Spark runs no such task."""
        return bool(self._spark.sparkContext._jsc.sc().killTaskAttempt(task_attempt, True, reason))

    def join(self, timeout_s: float) -> bool:
        """Waits for the slots to leave. True when they have."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Ends the Spark job, whatever its slots do, and waits up to 30 s."""
        self.give_up()
        self._thread.join(30)

    def give_up(self) -> None:
        """Ends the Spark job without waiting, also a job that is being submitted."""
        self._stopping.set()
        self._spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(self._group)

    def _supervise(self) -> None:
        delay = _FIRST_DELAY_S
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._submit()
                return
            except Exception as error:  # Spark raises many kinds, and each means that the job has ended
                self.last_failure = str(error)[:4000]
            if time.monotonic() - began > _QUIET_S:
                delay = _FIRST_DELAY_S
            if self._stopping.wait(delay):
                return
            self._slots = tuple(self._wanted())
            if not self._slots:
                return
            delay = min(delay * 2, _MAX_DELAY_S)

    def _submit(self) -> None:
        """Runs until every slot has left."""
        self.submissions += 1
        context = self._spark.sparkContext
        context.setLocalProperty("spark.jobGroup.id", self._group)
        context.setLocalProperty("spark.job.description", f"barrier-runtime {self._settings.name}")
        context.setLocalProperty("spark.job.interruptOnCancel", "true")
        slots = context.parallelize(self._slots, len(self._slots))
        slots.mapPartitions(_slot_partition(self._settings)).collect()


class AllSlots:
    """All slots of a job, over all its Spark jobs. For one thread, except `join` and `cancel`."""

    def __init__(self, spark: Any, settings: SlotSettings, parallelism: int, runs: Callable[[], bool]) -> None:
        """`runs()`: true while the coordinator runs the job."""
        self._spark = spark
        self._programs = {settings.program: settings}
        self._runs = runs
        self._program, self._parallelism = settings.program, parallelism  # from the last status of the coordinator
        self._first = SlotTasks(spark, settings, range(parallelism), lambda: self._wanted_of(self._first))
        self._carriers: dict[_Place, SlotTasks] = {(settings.program, slot): self._first for slot in range(parallelism)}
        self._standbys: StandbysWanted | None = None  # from the same status
        self._asked = ""  # the last request for standbys,
        self._awaited: set[_Place] = set()  # and its slots that have not been started yet
        self._joined: set[SlotTasks] = set()  # their slot has belonged to the job, so it leaves without a request
        self._started = 0

    def start(self) -> None:
        self._first.start()

    @property
    def group(self) -> str:
        """Prefix of the groups of this job's Spark jobs."""
        return _group(next(iter(self._programs.values())))

    def learn(self, program: str, graph: bytes) -> None:
        """Adds a program that the job may continue with."""
        first = self._programs[next(iter(self._programs))]
        self._programs.setdefault(program, replace(first, graph=graph, program=program))

    def follow(
        self,
        program: str,
        parallelism: int,
        standbys: StandbysWanted | None,
        missing: Sequence[int],
        away: Sequence[int] = (),
    ) -> None:
        """Follows a leading coordinator, whose job has `parallelism` slots of `program` and needs `standbys`.

        `missing`: slots of the job that are not connected. `away`: the missing slots that Spark does not replace, such
        as those of a lost host, whose loss Spark notices late.
        """
        self._program, self._parallelism, self._standbys = program, parallelism, standbys
        if standbys is not None and standbys.program in self._programs:
            if standbys.request != self._asked:
                self._asked = standbys.request
                self._awaited = {(standbys.program, slot) for slot in range(standbys.first, standbys.last + 1)}
            # Slots started for an earlier coordinator may have their places with this coordinator, or will leave on its
            # order. Two processes for one slot would replace each other for ever.
            for place in sorted(place for place in self._awaited if not self._is_carried(place)):
                self._awaited.discard(place)
                self._carry(place)
        for place, carrier in tuple(self._carriers.items()):
            if carrier is self._first:
                continue
            if not self._is_of_job(place):
                wanted = standbys is not None and place[0] == standbys.program
                if not wanted and carrier.alive and carrier not in self._joined:
                    carrier.give_up()  # the slot may wait for a core in vain
            elif carrier.alive:
                self._joined.add(carrier)
            elif place[1] in missing:  # an outdated coordinator ordered it to leave
                self._carry(place)
        for place in [(program, slot) for slot in away]:
            if self._carriers.get(place) is self._first:
                self._carry(place)

    def _is_carried(self, place: "_Place") -> bool:
        """True if a Spark job of its own carries the slot.

        The first Spark job does not count: it runs as long as any of its slots, also after this slot has left."""
        carrier = self._carriers.get(place)
        return carrier is not None and carrier is not self._first and carrier.alive and not carrier.given_up

    def _is_of_job(self, place: "_Place") -> bool:
        return place[0] == self._program and place[1] < self._parallelism

    def _stands_by(self, place: "_Place") -> bool:
        wanted = self._standbys
        return wanted is not None and place[0] == wanted.program and wanted.first <= place[1] <= wanted.last

    def kill_task(self, task_attempt: int, reason: str) -> bool:
        """Asks Spark to kill one slot's task and start a replacement. False if Spark runs no such task."""
        return self._first.kill_task(task_attempt, reason)  # finds tasks of any Spark job

    @property
    def last_failure(self) -> str:
        return next((each.last_failure for each in self._all if each.last_failure), "")

    @property
    def submissions(self) -> int:
        """Number of submissions of the Spark job that has failed."""
        return next((each.submissions for each in self._all if each.last_failure), self._first.submissions)

    def join(self, timeout_s: float) -> bool:
        """Waits for the slots to leave. True when they have."""
        until = time.monotonic() + timeout_s
        return all(each.join(max(0.0, until - time.monotonic())) for each in self._all)

    def cancel(self) -> None:
        """Ends the Spark jobs, whatever their slots do."""
        for each in self._all:
            each.give_up()
        for each in self._all:
            each.cancel()

    @property
    def _all(self) -> tuple[SlotTasks, ...]:
        return tuple(dict.fromkeys((self._first, *self._carriers.values())))

    def _carry(self, place: "_Place") -> None:
        program, slot = place
        self._started += 1
        group = f"-{slot}-{self._started}"
        settings = self._programs[program]
        carrier = SlotTasks(self._spark, settings, [slot], lambda: self._wanted_of(carrier), group)
        self._carriers[place] = carrier
        carrier.start()

    def _wanted_of(self, carrier: SlotTasks) -> Sequence[int]:
        """Slots of `carrier` to start again.

        Omits slots that moved to another Spark job, or that the job neither has nor awaits. The first Spark job starts
        no standby, as each standby gets a Spark job of its own."""
        own = [place for place, by in dict(self._carriers).items() if by is carrier]
        if not self._runs():
            return ()
        own_standbys = carrier is not self._first
        return [place[1] for place in own if self._is_of_job(place) or (own_standbys and self._stands_by(place))]


def staying_away(status: JobStatus, after_s: float | None) -> list[int]:
    """Slots that have been missing for `after_s`; None: no slot counts."""
    since_ms = 0.0 if after_s is None else status.at_ms - after_s * 1000
    return [each.slot for each in status.absences if 0 < each.since_ms <= since_ms]


def _group(settings: SlotSettings) -> str:
    return f"barrier-runtime-{settings.options.run_id}"


_Place: TypeAlias = tuple[str, int]  # (program, slot)


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
                # Spark's own report is silenced in our sessions (see `session`), and Spark starts the task again.
                print(_last_words(slot, error, settings.options.verbose), file=sys.stderr, flush=True)
                raise

    return partition


_MASTER = re.compile(r"spark://([^:/,\s]+):(\d+)")
_NEWEST_TASKS = 64  # of a stage, whose errors are read
_ASKED_S = 1.0
_MOST_BYTES = 4_000_000
_OURS = "barrier-runtime "  # prefix of the names of applications and jobs, see `session`


class RoomOfJob:
    """Free and held cores for one job's slots. `group`: prefix of the groups of its Spark jobs."""

    def __init__(self, spark: Any, group: str) -> None:
        self._spark = spark
        self._group = group
        self._failures: int | None = None  # failed tasks at the last look
        self.complete()

    def complete(self) -> None:
        """No slot is missing: errors of tasks launched before do not explain why a slot is missing later."""
        self._complete_ms = time.time_ns() // 1_000_000
        self._failing = ""  # the error that was logged

    def look(self) -> Room:
        """Cores, holders, and the newest error of tasks launched since no slot was missing; logs the first error.

        `starting` is 0 if a task failed since the last look: such slots do not start."""
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
    """Cores and their holders, without the job's own slots. `group`: as in `RoomOfJob`."""
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
    """Cores of all live executors, or of the local master."""
    context = spark.sparkContext
    executors = context._jsc.sc().statusStore().executorList(True)
    found = [executors.apply(index) for index in range(executors.size())]
    local = context.master.startswith("local") and not context.master.startswith("local-cluster")
    return sum(int(each.totalCores()) for each in found if (each.id() == "driver") == local)


def held_in_application(spark: Any, group: str, per_task: int) -> "Counter[str]":
    """Held cores by name of the Spark job, without the job's own."""
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
    """Failed attempts of a Spark job among the newest of each stage."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    store = spark.sparkContext._jsc.sc().statusStore()
    stages = job.stageIds()
    for number in (stages.apply(index) for index in range(stages.size())):
        try:
            attempt = store.lastStageAttempt(number).attemptId()
        except Py4JJavaError as error:
            if "NoSuchElement" not in error.java_exception.getClass().getName():
                raise
            continue  # Spark drops the oldest of many stages
        tasks = store.taskList(number, attempt, _NEWEST_TASKS)  # newest first
        for task in (tasks.apply(index) for index in range(tasks.size())):
            if task.status() == "FAILED" and task.errorMessage().isDefined():
                yield FailedTask(task.host(), int(task.launchTime().getTime()), task.errorMessage().get())


def _group_of(job: Any) -> str:
    return job.jobGroup().get() if job.jobGroup().isDefined() else ""


def cluster_of(master: str, ui_port: int, application: str) -> "tuple[int, Counter[str]] | None":
    """Cores of a standalone cluster, and the cores of its other applications by name.

    None if the cluster is of another kind, or its master's page does not answer."""
    found = _MASTER.match(master)
    if found is None:
        return None
    try:
        with urllib.request.urlopen(f"http://{found[1]}:{ui_port}/json/", timeout=_ASKED_S) as answer:
            told = json.loads(answer.read(_MOST_BYTES))
        if told["url"] != found[0]:  # the page of another master
            return None
        others = [each for each in told["activeapps"] if each["id"] != application]
        return int(told["cores"]), Counter(
            {_name(each["name"]): int(each["cores"]) for each in others if each["cores"]}
        )
    except (OSError, ValueError, LookupError, TypeError):  # no master's page, or a page without these fields
        return None


def _name(name: str) -> str:
    return name.removeprefix(_OURS)
