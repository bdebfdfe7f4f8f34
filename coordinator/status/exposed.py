"""What `/metrics` tells, as data: THE table of its families, and the samples of one job's status. Pure.

Names and labels never change: people's alarms use them. Per job there are at most 40 series, 12 per operator and 6 per
slot; no label has values that grow without bound. `tests/metrics_table.py` writes the table of docs/metrics.md from it,
and the dashboard and the alerts that are shipped are checked against it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from barrier_runtime.coordinator.metric_table import LATE_ROWS, LOOP_LAG_MS, RSS_BYTES, STARVED_S
from barrier_runtime.coordinator.status.health import TROUBLED
from barrier_runtime.coordinator.status.status import DURATION_BOUNDS_MS, JobStatus
from barrier_runtime.coordinator.status.transactions import OWN_METRICS, of_sinks

FORGOTTEN_MS = 3_600_000  # a job that ended is told for so long
PER_JOB, PER_OPERATOR, PER_SLOT = 40, 12, 6  # most series
_LATE = LATE_ROWS.key("")
_TOLD_OTHERWISE = frozenset({"rows_in", "rows_out", "work_s", "blocked_s", "held_s"}) | OWN_METRICS  # in other families


@dataclass(frozen=True)
class Family:
    """`labels`: those that its samples have besides `job`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


# fmt: off
RUNNING = Family("barrier_job_running", "gauge", "1 while the job runs, 0 while it starts or recovers, or if it "
                 "failed; none of one that finished or was stopped")
TROUBLE = Family("barrier_job_trouble", "gauge", "1 for the condition of the job, if that is a trouble", ("cause",))
SLOTS_MISSING = Family("barrier_slots_missing", "gauge", "slots that the job waits for")
CHECKPOINTS = Family("barrier_checkpoints_total", "counter", "checkpoints by how they ended: completed, failed",
                     ("result",))
DURATION = Family("barrier_checkpoint_duration_seconds", "histogram", "from the trigger until the checkpoint completed")
AGE = Family("barrier_checkpoint_age_seconds", "gauge", "since the last completed checkpoint was triggered")
UPLOADED = Family("barrier_checkpoint_uploaded_bytes", "gauge", "that the last completed checkpoint uploaded")
RECOVERIES = Family("barrier_recoveries_total", "counter", "restarts of the job, and takeovers by another coordinator: "
                    "restart, takeover", ("kind",))
RECORDS = Family("barrier_source_records_total", "counter", "rows that the sources have read, each counted once")
ROWS = Family("barrier_rows_total", "counter", "rows that a chain took (in) and sent (out), under the name of its "
              "first operator; begins again with each generation", ("operator", "direction"))
BUSY = Family("barrier_busy_ratio", "gauge", "share of 10 s in which a chain worked on rows, mean of the slots",
              ("operator",))
BACKPRESSURED = Family("barrier_backpressured_ratio", "gauge", "share of 10 s in which a chain waited for receivers",
                       ("operator",))
HELD = Family("barrier_held_ratio", "gauge", "share of 10 s in which a chain waited for a server", ("operator",))
LATE = Family("barrier_late_rows_total", "counter", "rows whose window was over", ("operator",))
STATE = Family("barrier_state_bytes", "gauge", "state of an operator in all slots, as of the last checkpoint",
               ("operator",))
LAG = Family("barrier_watermark_lag_seconds", "gauge", "by how much a source's watermark is behind the clock",
             ("operator",))
OTHER = Family("barrier_operator_metric", "gauge", "other metrics of operators (those above), and what functions count "
               "themselves; all slots together", ("operator", "metric"))
LATENCY = Family("barrier_latency_seconds", "gauge", "of the last minute, by quantile (0.5, 0.99, 1): from the time a "
                 "row was due until it was processed or visible", ("sink", "kind", "quantile"))
PENDING = Family("barrier_transactions_pending", "gauge", "completed checkpoints that a sink has not made visible",
                 ("sink",))
OLDEST = Family("barrier_transaction_oldest_seconds", "gauge", "since the oldest of them was decided", ("sink",))
SPENT = Family("barrier_transaction_timeout_spent_ratio", "gauge", "age of a sink's oldest transaction that is not "
               "visible, as a share of the time for which its target remembers it", ("sink",))
FAILING = Family("barrier_commit_failed_attempts", "gauge", "attempts of a commit that fails now", ("sink",))
SLOW_COMMIT = Family("barrier_slow_commit_seconds", "gauge", "for how long a sink has committed more slowly than "
                     "checkpoints complete; none while it keeps up", ("sink",))
SLOW_UPLOAD = Family("barrier_slow_upload_seconds", "gauge", "for how long uploads of an operator have taken longer "
                     "than the interval between checkpoints; none while they do not", ("operator", "slot"))
SLOT_MEMORY = Family("barrier_slot_memory_bytes", "gauge", "memory of the slot's process", ("slot",))
SLOT_LAG = Family("barrier_slot_loop_lag_seconds", "gauge", "how late the slot's last heartbeat was", ("slot",))
SLOT_STARVED = Family("barrier_slot_starved_seconds_total", "counter", "time in which the slot's loop was ready to run "
                      "and got no processor", ("slot",))
# fmt: on

FAMILIES = tuple(each for each in tuple(globals().values()) if isinstance(each, Family))

Sample: TypeAlias = tuple[Family, tuple[str, ...], float]  # values of the family's labels, without the job


@dataclass(frozen=True)
class Buckets:
    """Of the one histogram: (upper bound in seconds, cumulative count), and the sum in seconds."""

    counts: tuple[tuple[float, int], ...]
    total: int
    sum_s: float


def is_told(status: JobStatus, now_ms: int) -> bool:
    """False for a run that another one replaced, and for one that ended an hour ago."""
    if status.outcome in ("fenced", "replaced"):
        return False
    return status.outcome is None or now_ms - status.condition_since_ms < FORGOTTEN_MS


def durations(status: JobStatus) -> Buckets:
    counted = status.checkpoints.durations
    counts = counted.counts or (0,) * (len(DURATION_BOUNDS_MS) + 1)
    bounds, up_to = [], 0
    for bound_ms, count in zip(DURATION_BOUNDS_MS, counts, strict=False):
        up_to += count
        bounds.append((bound_ms / 1000, up_to))
    return Buckets(tuple(bounds), sum(counts), counted.sum_ms / 1000)


def samples(status: JobStatus) -> Iterator[Sample]:
    """All but the histogram."""
    if status.outcome not in ("finished", "cancelled"):  # an alarm on 0 must not ring for what was wished for
        yield RUNNING, (), float(status.phase == "running")
    if status.condition in TROUBLED:
        yield TROUBLE, (status.condition.lower(),), 1.0
    yield SLOTS_MISSING, (), float(len(status.missing_slots))
    checkpoints = status.checkpoints
    yield CHECKPOINTS, ("completed",), float(checkpoints.completed)
    yield CHECKPOINTS, ("failed",), float(checkpoints.failed)
    if checkpoints.last_completed is not None:
        yield AGE, (), max(0, status.at_ms - checkpoints.last_completed.triggered_ms) / 1000
        yield UPLOADED, (), float(checkpoints.last_completed.new_bytes)
    yield RECOVERIES, ("restart",), float(max(0, status.generations - 1))
    yield RECOVERIES, ("takeover",), float(status.taken_over)
    yield RECORDS, (), float(status.records)
    told: Counter[str] = Counter()
    for sample in (*_of_chains(status), *_of_sinks(status)):
        told[sample[1][0]] += 1
        yield sample
    yield from _of_operators(status, told)
    yield from _of_slots(status)


def _of_chains(status: JobStatus) -> Iterator[Sample]:
    sending = {number for chain in status.chains for number in chain.inputs}
    for chain in status.chains:
        name = chain.operators[0]
        if chain.busy is None:
            continue
        yield ROWS, (name, "in"), float(chain.rows_in)
        if chain.chain in sending:
            yield ROWS, (name, "out"), float(chain.rows_out)
        for family, share in ((BUSY, chain.busy), (BACKPRESSURED, chain.backpressured), (HELD, chain.held)):
            if share is not None:
                yield family, (name,), share
    for source in status.sources:
        if source.lag_ms is not None:
            yield LAG, (source.source,), source.lag_ms / 1000
    last = status.checkpoints.last_completed
    for operator, size in () if last is None else sorted(last.state_bytes.items()):
        yield STATE, (operator,), float(size)


def _of_operators(status: JobStatus, told: Counter[str]) -> Iterator[Sample]:
    """What is left of each operator's series. `told`: those that it has already."""
    totals: dict[str, float] = {}
    for slot in status.slots:
        for key, figure in slot.metrics.items():
            totals[key] = totals.get(key, 0.0) + figure
    for key, figure in sorted(totals.items(), key=lambda each: (not each[0].endswith(_LATE), each[0])):
        operator, _, metric = key.rpartition(".")
        if not operator or metric in _TOLD_OTHERWISE or told[operator] >= PER_OPERATOR:
            continue
        told[operator] += 1
        if key.endswith(_LATE):
            yield LATE, (operator,), figure
        else:
            yield OTHER, (operator, metric), figure


def _of_sinks(status: JobStatus) -> Iterator[Sample]:
    for name, latency in status.latency_last_minute.items():
        sink, _, kind = name.rpartition(":")
        if latency.count:
            for quantile, ms in (("0.5", latency.p50), ("0.99", latency.p99), ("1", latency.max)):
                yield LATENCY, (sink, kind, quantile), ms / 1000
    through: dict[str, int] = {}  # what all subtasks of a sink have made visible
    for key, checkpoint in status.commits.through.items():
        sink = key.rpartition("/")[0]
        through[sink] = min(checkpoint, through.get(sink, checkpoint))
    complete = [each for each in status.checkpoints.history if each.outcome == "complete"]
    for sink, checkpoint in sorted(through.items()):
        behind = [each for each in complete if each.checkpoint > checkpoint]
        yield PENDING, (sink,), float(len(behind))
        decided_ms = min((each.triggered_ms + each.duration_ms for each in behind), default=status.at_ms)
        yield OLDEST, (sink,), max(0, status.at_ms - decided_ms) / 1000
    spent: dict[str, float] = {}
    for each in of_sinks(status, status.at_ms):
        if each.timeout_ms:
            sink = each.sink.rpartition("/")[0]
            spent[sink] = max(each.spent, spent.get(sink, 0.0))
    for sink, share in spent.items():
        yield SPENT, (sink,), share
    failing: dict[str, int] = {}
    for trouble in status.commits.troubles:
        sink = trouble.sink.rpartition("/")[0]
        failing[sink] = max(trouble.attempts, failing.get(sink, 0))
    for sink, attempts in failing.items():
        yield FAILING, (sink,), float(attempts)
    for slow in status.commits.slow:
        yield SLOW_COMMIT, (slow.sink,), max(0, status.at_ms - slow.since_ms) / 1000
    for upload in status.checkpoints.slow_uploads:
        labels = (upload.operator, str(upload.slot))
        yield SLOW_UPLOAD, labels, max(0, status.at_ms - upload.since_ms) / 1000


def _of_slots(status: JobStatus) -> Iterator[Sample]:
    for slot in status.slots:
        name = (str(slot.slot),)
        yield SLOT_MEMORY, name, slot.metrics.get(RSS_BYTES.name, 0.0)
        yield SLOT_LAG, name, slot.metrics.get(LOOP_LAG_MS.name, 0.0) / 1000
        yield SLOT_STARVED, name, slot.metrics.get(STARVED_S.name, 0.0)
