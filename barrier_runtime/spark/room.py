"""What Spark knows of room for slots that do not come: how many cores there are, and who holds them.

Asked only while slots are missing. In this application it is the running jobs, of whoever shares the session; of a
standalone cluster also the other applications, as its master's page has them (`spark.master.ui.port`, 8080; without an
answer they are left out). Other managers of clusters are not asked: there, cores are those of this application.
"""

import json
import re
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from barrier_runtime.coordinator.status.status import Room

_MASTER = re.compile(r"spark://([^:/,\s]+):(\d+)")
_ASKED_S = 1.0
_MOST_BYTES = 4_000_000
_OURS = "barrier-runtime "  # before a job's name, as `session` and `stage` name applications and jobs


class RoomOfJob:
    """Room for one job's slots. `group`: what the groups of its Spark jobs begin with."""

    def __init__(self, spark: Any, group: str) -> None:
        self._spark = spark
        self._group = group
        self._failures: int | None = None  # of its tasks, at the last look

    def look(self) -> Room:
        """Slots that fail again and again are not starting: those of a look since which one failed are not told."""
        found, active, failures = room(self._spark, self._group), 0, 0
        for job in _jobs(self._spark):
            if _group(job).startswith(self._group):
                active += int(job.numActiveTasks())
                failures += int(job.numFailedTasks()) + int(job.numKilledTasks())
        before, self._failures = self._failures, failures
        return msgspec.structs.replace(found, starting=active if failures in (0, before) else 0)


def room(spark: Any, group: str) -> Room:
    """`group`: as in `RoomOfJob`. Without what tells of the job's own slots."""
    context = spark.sparkContext
    conf = context.getConf()
    per_slot = int(conf.get("spark.task.cpus", "1"))
    cores = cores_of_application(spark)
    held = held_in_application(spark, group, per_slot)
    most = conf.get("spark.cores.max")
    if most is None or int(most) > cores:  # it could have more of the cluster
        cluster = cluster_of(context.master, int(conf.get("spark.master.ui.port", "8080")), context.applicationId)
        if cluster is not None:
            cores, others = cluster
            held += others
    return Room(cores, per_slot, dict(held))


def cores_of_application(spark: Any) -> int:
    """Of all executors now alive (or of the local master)."""
    context = spark.sparkContext
    executors = context._jsc.sc().statusStore().executorList(True)
    found = [executors.apply(index) for index in range(executors.size())]
    local = context.master.startswith("local") and not context.master.startswith("local-cluster")
    return sum(int(each.totalCores()) for each in found if (each.id() == "driver") == local)


def held_in_application(spark: Any, group: str, per_task: int) -> "Counter[str]":
    """Cores by the name of the Spark job, the job's own left out."""
    held: Counter[str] = Counter()
    for job in _jobs(spark):
        if job.numActiveTasks() > 0 and not _group(job).startswith(group):
            name = job.description().get() if job.description().isDefined() else job.name()
            held[_name(name)] += int(job.numActiveTasks()) * per_task
    return held


def _jobs(spark: Any) -> Iterator[Any]:
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return (jobs.apply(index) for index in range(jobs.size()))


def _group(job: Any) -> str:
    return job.jobGroup().get() if job.jobGroup().isDefined() else ""


def cluster_of(master: str, ui_port: int, application: str) -> "tuple[int, Counter[str]] | None":
    """Cores of a standalone cluster, and those of its other applications by name. None: it is no such cluster, or its
    master's page does not answer there."""
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
    except (OSError, ValueError, LookupError, TypeError):  # no master's page, or none that says this
        return None


def _name(name: str) -> str:
    return name.removeprefix(_OURS)
