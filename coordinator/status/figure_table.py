"""THE table of a job's figures. Pure.

`/metrics`, OpenTelemetry, tiles and docs/metrics.md use the rows; CONTRIBUTING.md says how to add a row. Names and
labels never change: people's alarms use them. Per job there are at most 40 series, 12 per operator and 6 per slot; no
label has values that grow without bound.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, TypeAlias

from barrier_runtime.coordinator.metric_table import LATE_ROWS, LOOP_LAG_MS, RSS_BYTES, STARVED_S
from barrier_runtime.coordinator.status.health import TROUBLED
from barrier_runtime.coordinator.status.statistics import totals
from barrier_runtime.coordinator.status.status import DURATION_BOUNDS_MS, ChainStatus, JobStatus
from barrier_runtime.coordinator.status.transactions import OWN_METRICS, of_sinks

FORGOTTEN_MS = 3_600_000
PER_JOB, PER_OPERATOR, PER_SLOT = 40, 12, 6
_LATE = LATE_ROWS.key("")
_SHOWN_OTHERWISE = frozenset({"rows_in", "rows_out", "work_s", "blocked_s", "held_s"}) | OWN_METRICS  # in other rows

Labels: TypeAlias = tuple[str, ...]
Reading: TypeAlias = Callable[[JobStatus], Iterator[tuple[Labels, float]]]
Unit: TypeAlias = Literal["", "rows", "rows/s", "generations", "takeovers", "checkpoints", "snapshots", "ms", "bytes"]


@dataclass(frozen=True)
class Tile:
    """Tile of the page; `name`: the figure's.

    A tile with a `label` stands alone; `under`: label and name of the smaller figure below.
    """

    name: str
    label: str = ""
    under: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Figure:
    """`place`: path in the status. `exposed`: name in `/metrics`, with `labels` besides `job`. `read`, if
    set, replaces `place`.
    """

    kind: Literal["counter", "gauge", "histogram"]
    help: str
    unit: Unit = ""
    place: str = ""
    exposed: str = ""
    labels: Labels = ()
    read: Reading | None = None
    tile: Tile | None = None

    def values(self, status: JobStatus) -> Iterator[tuple[Labels, float]]:
        if self.read is not None:
            yield from self.read(status)
        elif not self.place.startswith(_LAST) or status.checkpoints.last_completed is not None:
            value = attrgetter(self.place)(status)
            if value is not None:
                yield (), float(value)


def _number(read: Callable[[JobStatus], float | None]) -> Reading:
    def values(status: JobStatus) -> Iterator[tuple[Labels, float]]:
        value = read(status)
        if value is not None:
            yield (), float(value)

    return values


def _running(status: JobStatus) -> float | None:
    """None for a job that ended as requested: an alert on 0 must not fire."""
    return None if status.outcome in ("finished", "cancelled") else float(status.phase == "running")


def _trouble(status: JobStatus) -> Iterator[tuple[Labels, float]]:
    if status.condition in TROUBLED:
        yield (status.condition.lower(),), 1.0
    if status.silent_links:
        yield ("silent_links",), float(len({link.slot for link in status.silent_links}))
    if status.outcome is None and status.parallelism < status.full_parallelism:
        yield ("fewer_slots",), float(status.full_parallelism - status.parallelism)


def _spares_missing(status: JobStatus) -> float | None:
    """None for an ended job."""
    spares = status.spares
    return spares.wanted - spares.ready if spares.wanted and status.outcome is None else None


def _silent_links(status: JobStatus) -> Iterator[tuple[Labels, float]]:
    for slot in sorted({link.slot for link in status.silent_links}):
        worst = max((link for link in status.silent_links if link.slot == slot), key=lambda link: link.silent_ms)
        yield (str(slot), str(worst.peer)), worst.silent_ms / 1000


def _checkpoints(status: JobStatus) -> Iterator[tuple[Labels, float]]:
    yield ("completed",), float(status.checkpoints.completed)
    yield ("failed",), float(status.checkpoints.failed)


def _age(status: JobStatus) -> float | None:
    last = status.checkpoints.last_completed
    return None if last is None else max(0, status.at_ms - last.triggered_ms) / 1000


def _recoveries(status: JobStatus) -> Iterator[tuple[Labels, float]]:
    yield ("restart",), float(max(0, status.generations - 1))
    yield ("takeover",), float(status.taken_over)


def _rows_per_s(status: JobStatus) -> float | None:
    rates = [chain.rows_in_per_s for chain in status.chains if chain.is_source]
    known = [each for each in rates if each is not None]
    return sum(known) if known and len(known) == len(rates) else None


def _worst_lag(status: JobStatus) -> float | None:
    return max((source.lag_ms for source in status.sources if source.lag_ms is not None), default=None)


def _backlogs(status: JobStatus) -> Iterator[tuple[Labels, float]]:
    for chain in status.chains:
        if chain.backlog is not None:
            yield (chain.operators[0],), float(chain.backlog)


def _backlog(status: JobStatus) -> float | None:
    known = [rows for _, rows in _backlogs(status)]
    return sum(known) if known else None


def _caught_up_in_ms(status: JobStatus) -> float | None:
    times = [chain.caught_up_in_s for chain in status.chains if chain.backlog is not None]
    known = [seconds * 1000 for seconds in times if seconds is not None]
    return max(known) if known and len(known) == len(times) else None


def _since_completed(status: JobStatus) -> float | None:
    last = status.checkpoints.last_completed
    return None if last is None else max(0, status.at_ms - last.triggered_ms - last.duration_ms)


def _worst_of_minute(kind: str, percentile: str) -> Reading:
    def read(status: JobStatus) -> float | None:
        recent = (each for name, each in status.latency_last_minute.items() if name.endswith(f":{kind}") and each.count)
        return max(map(attrgetter(percentile), recent), default=None)

    return _number(read)


def _rows(status: JobStatus) -> Iterator[tuple[Labels, float]]:
    sending = {number for chain in status.chains for number in chain.inputs}
    for chain in status.chains:
        if chain.busy is not None:
            yield (chain.operators[0], "in"), float(chain.rows_in)
            if chain.chain in sending:
                yield (chain.operators[0], "out"), float(chain.rows_out)


def _share(of: Callable[[ChainStatus], float | None]) -> Reading:
    def read(status: JobStatus) -> Iterator[tuple[Labels, float]]:
        for chain in status.chains:
            share = of(chain)
            if chain.busy is not None and share is not None:
                yield (chain.operators[0],), share

    return read


def _lag(status: JobStatus) -> Iterator[tuple[Labels, float]]:
    for source in status.sources:
        if source.lag_ms is not None:
            yield (source.source,), source.lag_ms / 1000


def _state(status: JobStatus) -> Iterator[tuple[Labels, float]]:
    last = status.checkpoints.last_completed
    for operator, size in () if last is None else sorted(last.state_bytes.items()):
        yield (operator,), float(size)


def _of_operators(status: JobStatus) -> list[tuple[str, str, float]]:
    found = totals(slot.metrics for slot in status.slots)
    parted = ((key.rpartition("."), found[key]) for key in sorted(found, key=lambda key: (not _late(key), key)))
    return [(name, metric, figure) for (name, _, metric), figure in parted if name and metric not in _SHOWN_OTHERWISE]


def _late(key: str) -> bool:
    return key.endswith(_LATE)


def _late_rows(status: JobStatus) -> Iterator[tuple[Labels, float]]:
    for operator, metric, figure in _of_operators(status):
        if metric == LATE_ROWS.name:
            yield (operator,), figure


def _other(status: JobStatus) -> Iterator[tuple[Labels, float]]:
    for operator, metric, figure in _of_operators(status):
        if metric != LATE_ROWS.name:
            yield (operator, metric), figure


def _latency(status: JobStatus) -> Iterator[tuple[Labels, float]]:
    for name, latency in status.latency_last_minute.items():
        sink, _, kind = name.rpartition(":")
        if latency.count:
            for quantile, ms in (("0.5", latency.p50), ("0.99", latency.p99), ("1", latency.max)):
                yield (sink, kind, quantile), ms / 1000


def _behind(status: JobStatus) -> Iterator[tuple[str, list[int]]]:
    through: dict[str, int] = {}  # of all subtasks
    for key, checkpoint in status.commits.through.items():
        sink = key.rpartition("/")[0]
        through[sink] = min(checkpoint, through.get(sink, checkpoint))
    complete = [each for each in status.checkpoints.history if each.outcome == "complete"]
    for sink, checkpoint in sorted(through.items()):
        yield sink, [each.triggered_ms + each.duration_ms for each in complete if each.checkpoint > checkpoint]


def _pending(status: JobStatus) -> Iterator[tuple[Labels, float]]:
    for sink, decided_ms in _behind(status):
        yield (sink,), float(len(decided_ms))


def _oldest(status: JobStatus) -> Iterator[tuple[Labels, float]]:
    for sink, decided_ms in _behind(status):
        yield (sink,), max(0, status.at_ms - min(decided_ms, default=status.at_ms)) / 1000


def _spent(status: JobStatus) -> Iterator[tuple[Labels, float]]:
    spent: dict[str, float] = {}
    for each in of_sinks(status, status.at_ms):
        if each.timeout_ms:
            sink = each.sink.rpartition("/")[0]
            spent[sink] = max(each.spent, spent.get(sink, 0.0))
    for sink, share in spent.items():
        yield (sink,), share


def _failing(status: JobStatus) -> Iterator[tuple[Labels, float]]:
    failing: dict[str, int] = {}
    for trouble in status.commits.troubles:
        sink = trouble.sink.rpartition("/")[0]
        failing[sink] = max(trouble.attempts, failing.get(sink, 0))
    for sink, attempts in failing.items():
        yield (sink,), float(attempts)


def _slow_commits(status: JobStatus) -> Iterator[tuple[Labels, float]]:
    for slow in status.commits.slow:
        yield (slow.sink,), max(0, status.at_ms - slow.since_ms) / 1000


def _slow_uploads(status: JobStatus) -> Iterator[tuple[Labels, float]]:
    for upload in status.checkpoints.slow_uploads:
        yield (upload.operator, str(upload.slot)), max(0, status.at_ms - upload.since_ms) / 1000


def _of_slots(metric: str, divisor: int = 1) -> Reading:
    def read(status: JobStatus) -> Iterator[tuple[Labels, float]]:
        for slot in status.slots:
            yield (str(slot.slot),), slot.metrics.get(metric, 0.0) / divisor

    return read


# in the order of /metrics and of the tiles
# fmt: off
_LAST = "checkpoints.last_completed"
_TRIGGERED = "from the trigger until "
DURATION = Figure("histogram", f"{_TRIGGERED}the checkpoint completed", exposed="barrier_checkpoint_duration_seconds")
LATE = Figure("counter", "rows whose window was over", exposed="barrier_late_rows_total", labels=("operator",),
              read=_late_rows)
OTHER = Figure("gauge", "other metrics of operators (those above), and what functions count themselves; all slots "
               "together", exposed="barrier_operator_metric", labels=("operator", "metric"), read=_other)
SPENT = Figure("gauge", "age of a sink's oldest transaction that is not visible, as a share of the time for which its "
               "target remembers it", exposed="barrier_transaction_timeout_spent_ratio", labels=("sink",), read=_spent)
SLOW_COMMIT = Figure("gauge", "for how long a sink has committed more slowly than checkpoints complete; none while it "
                     "keeps up", exposed="barrier_slow_commit_seconds", labels=("sink",), read=_slow_commits)
SLOW_UPLOAD = Figure("gauge", "for how long uploads of an operator have taken longer than the interval between "
                     "checkpoints; none while they do not", exposed="barrier_slow_upload_seconds",
                     labels=("operator", "slot"), read=_slow_uploads)

FIGURES = (
    Figure("counter", "deployments of the job: its start, and a restart each", "generations", "generations"),
    Figure("counter", "times that another coordinator took the job over", "takeovers", "taken_over"),
    Figure("counter", "triggered checkpoints", "checkpoints", "checkpoints.triggered"),
    Figure("gauge", "1 while the job runs, 0 while it starts or recovers, or if it failed; none of one that finished "
           "or was stopped", exposed="barrier_job_running", read=_number(_running)),
    Figure("gauge", "1 for the condition of the job, if that is a trouble; cause silent_links: slots that do not hear "
           "a peer, although both reach the coordinator; cause fewer_slots: slots that stay away (at_least)",
           exposed="barrier_job_trouble", labels=("cause",), read=_trouble),
    Figure("gauge", "slots that the job waits for", exposed="barrier_slots_missing",
           read=_number(lambda status: len(status.missing_slots))),
    Figure("gauge", "spares that are not ready to take a slot; none without spare_slots",
           exposed="barrier_spares_missing", read=_number(_spares_missing)),
    Figure("gauge", "for how long a slot has not heard a peer, although both reach the coordinator; a slot's peer that "
           "is silent longest", exposed="barrier_silent_link_seconds", labels=("slot", "peer"),
           read=_silent_links),
    Figure("counter", "checkpoints by how they ended: completed, failed", exposed="barrier_checkpoints_total",
           labels=("result",), read=_checkpoints),
    DURATION,
    Figure("gauge", "since the last completed checkpoint was triggered", exposed="barrier_checkpoint_age_seconds",
           read=_number(_age)),
    Figure("gauge", "that the last completed checkpoint uploaded", "bytes", f"{_LAST}.new_bytes",
           exposed="barrier_checkpoint_uploaded_bytes"),
    Figure("counter", "restarts of the job, and takeovers by another coordinator: restart, takeover",
           exposed="barrier_recoveries_total", labels=("kind",), read=_recoveries),
    Figure("counter", "rows that the sources have read, each counted once", "rows",
           exposed="barrier_source_records_total", read=_number(lambda status: status.records),
           tile=Tile("records", "Records read", ("now", "rate"))),
    Figure("gauge", "rows that the sources read now", "rows/s", read=_number(_rows_per_s), tile=Tile("rate")),
    Figure("gauge", "rows that sources have yet to read, of sources that know (Kafka)", "rows", read=_number(_backlog),
           tile=Tile("backlog", "Backlog", ("caught up in", "caught_up_in"))),
    Figure("gauge", "until the slowest source has caught up, if backlogs fall on as fast; none while one does not",
           "ms", read=_number(_caught_up_in_ms), tile=Tile("caught_up_in")),
    Figure("gauge", "the greatest watermark lag of a source", "ms", read=_number(_worst_lag),
           tile=Tile("lag", "Watermark lag")),
    Figure("gauge", f"{_TRIGGERED}the checkpoint was completed", "ms", f"{_LAST}.duration_ms",
           tile=Tile("checkpoint_took", "Last checkpoint", ("age", "checkpoint_age"))),
    Figure("gauge", "since the last checkpoint completed", "ms", read=_number(_since_completed),
           tile=Tile("checkpoint_age")),
    *(each for kind, ends in (("processed", "Processing latency"), ("visible", "Latency until visible")) for each in (
        Figure("gauge", f"the greatest 99th percentile of a sink in the last minute: {kind}", "ms",
               read=_worst_of_minute(kind, "p99"),
               tile=Tile(f"{kind}_p99", f"{ends}, p99", ("p50", f"{kind}_p50"))),
        Figure("gauge", f"the greatest median of a sink in the last minute: {kind}", "ms",
               read=_worst_of_minute(kind, "p50"), tile=Tile(f"{kind}_p50")))),
    Figure("counter", "rows that a chain took (in) and sent (out), under the name of its first operator; begins again "
           "with each generation", exposed="barrier_rows_total", labels=("operator", "direction"), read=_rows),
    Figure("gauge", "share of 10 s in which a chain worked on rows, mean of the slots", exposed="barrier_busy_ratio",
           labels=("operator",), read=_share(lambda chain: chain.busy)),
    Figure("gauge", "share of 10 s in which a chain waited for receivers", exposed="barrier_backpressured_ratio",
           labels=("operator",), read=_share(lambda chain: chain.backpressured)),
    Figure("gauge", "share of 10 s in which a chain waited for a server", exposed="barrier_held_ratio",
           labels=("operator",), read=_share(lambda chain: chain.held)),
    LATE,
    Figure("gauge", "state of an operator in all slots, as of the last checkpoint", exposed="barrier_state_bytes",
           labels=("operator",), read=_state),
    Figure("gauge", "rows that a source has yet to read, if it knows (Kafka)", "rows",
           exposed="barrier_source_backlog_rows", labels=("operator",), read=_backlogs),
    Figure("gauge", "by how much a source's watermark is behind the clock", exposed="barrier_watermark_lag_seconds",
           labels=("operator",), read=_lag),
    OTHER,
    Figure("gauge", "of the last minute, by quantile (0.5, 0.99, 1): from the time a row was due until it was "
           "processed or visible", exposed="barrier_latency_seconds", labels=("sink", "kind", "quantile"),
           read=_latency),
    Figure("gauge", "completed checkpoints that a sink has not made visible", exposed="barrier_transactions_pending",
           labels=("sink",), read=_pending),
    Figure("gauge", "since the oldest of them was decided", exposed="barrier_transaction_oldest_seconds",
           labels=("sink",), read=_oldest),
    SPENT,
    Figure("gauge", "attempts of a commit that fails now", exposed="barrier_commit_failed_attempts", labels=("sink",),
           read=_failing),
    SLOW_COMMIT,
    SLOW_UPLOAD,
    Figure("gauge", "memory of the slot's process", exposed="barrier_slot_memory_bytes", labels=("slot",),
           read=_of_slots(RSS_BYTES.name)),
    Figure("gauge", "how late the slot's last heartbeat was", exposed="barrier_slot_loop_lag_seconds",
           labels=("slot",), read=_of_slots(LOOP_LAG_MS.name, 1000)),
    Figure("counter", "time in which the slot's loop was ready to run and got no processor",
           exposed="barrier_slot_starved_seconds_total", labels=("slot",), read=_of_slots(STARVED_S.name)),
    Figure("gauge", "of that: until every subtask had acknowledged", "ms", f"{_LAST}.ack_duration_ms"),
    Figure("gauge", "of that: until half of the subtasks had acknowledged", "ms", f"{_LAST}.median_ack_ms"),
    Figure("gauge", "of that: the manifest", "ms", f"{_LAST}.persist_duration_ms"),
    Figure("gauge", "of that: the record in the log", "ms", f"{_LAST}.decide_duration_ms"),
    Figure("gauge", "from the decision until every sink had committed", "ms", f"{_LAST}.commit_duration_ms"),
    Figure("gauge", f"{_TRIGGERED}the last subtask had the first barrier", "ms", f"{_LAST}.start_delay_ms"),
    Figure("gauge", "the longest that a subtask aligned barriers", "ms", f"{_LAST}.alignment_ms"),
    Figure("gauge", "the longest that a subtask stood still to take its snapshot", "ms", f"{_LAST}.sync_ms"),
    Figure("gauge", "the longest that the rest of a snapshot took, beside the work on rows", "ms", f"{_LAST}.async_ms"),
    Figure("gauge", "all state", "bytes", f"{_LAST}.full_bytes", tile=Tile("state", "State", ("slots", "slots"))),
    Figure("counter", "completed checkpoints", "checkpoints", "checkpoints.completed",
           tile=Tile("completed", "Checkpoints", ("failed", "failed"))),
    Figure("counter", "checkpoints that were declined, aborted or too slow", "checkpoints", "checkpoints.failed",
           tile=Tile("failed")),
    Figure("gauge", "completed checkpoints that subtasks of sinks have not made visible", "checkpoints",
           read=_number(lambda status: sum(sink.pending for sink in of_sinks(status, status.at_ms))),
           tile=Tile("pending", "Committed checkpoints, not yet visible", ("checkpoint under way:", "in_progress"))),
    Figure("gauge", "rows between subtasks, of an unaligned checkpoint", "bytes", f"{_LAST}.in_flight_bytes"),
    Figure("gauge", "snapshots of subtasks", "snapshots", f"{_LAST}.parts"),
)
# fmt: on

EXPOSED = tuple(figure for figure in FIGURES if figure.exposed)
TILES = tuple((figure, figure.tile) for figure in FIGURES if figure.tile is not None)

Sample: TypeAlias = tuple[Figure, Labels, float]


@dataclass(frozen=True)
class Buckets:
    """`counts`: (upper bound in seconds, cumulative count)."""

    counts: tuple[tuple[float, int], ...]
    total: int
    sum_s: float


def is_exported(status: JobStatus, now_ms: int) -> bool:
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
    """All samples except the histogram, at most `PER_OPERATOR` series per operator."""
    series: Counter[str] = Counter()
    for figure in EXPOSED:
        if figure not in (DURATION, LATE, OTHER):
            for labels, value in figure.values(status):
                if figure.labels[:1] in (("operator",), ("sink",)):
                    series[labels[0]] += 1
                yield figure, labels, value
    for figure in (LATE, OTHER):
        for labels, value in figure.values(status):
            if series[labels[0]] < PER_OPERATOR:
                series[labels[0]] += 1
                yield figure, labels, value
