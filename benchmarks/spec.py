"""Specification and result of a run: `RunSpec` goes to the engine's process as a file.

`RunResult` goes into results.json. Times ending in `_ns` are wall-clock nanoseconds since the epoch; all processes of a
run are on the same machine and share a clock. Percentiles are milliseconds. A figure that a run does not measure is
None, never 0.
"""

from typing import Literal

import msgspec

Source = Literal["generator", "kafka", "parquet", "csv", "jsonl"]
Sink = Literal["measure", "kafka", "discard", "answer", "delta", "iceberg"]
Storage = Literal["file", "s3"]
Measure = Literal["latency", "visible", "throughput"]
Guarantee = Literal["exactly_once", "at_least_once", "at_most_once"]


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A run of an engine. The empty `folder` gets the engine's stamps and `facts.json`."""

    engine: str
    workload: str
    measure: Measure
    source: Source
    sink: Sink
    rate: float = 0.0  # rows per second over all splits; 0: as fast as possible
    rows: int = 0  # of a bounded input; 0: endless
    keys: int = 10_000
    parallelism: int = 2
    interval_ms: int = 1_000
    warm_up_s: float = 15.0
    seconds: float = 40.0  # measured, after the warm-up
    round: int = 0
    folder: str = ""
    preload: int = 0  # number of keys with a row each before the schedule begins (this runtime's generator only)
    latency_target_ms: float | None = None  # of this runtime; None: the default
    storage: Storage = "file"  # of this runtime's checkpoints
    storage_url: str = ""
    input: str = ""  # folder of files
    target: str = ""  # folder of a Delta table, or of the Iceberg tables
    compact: str | None = None  # size to which this runtime joins the files of a table
    bootstrap: str = ""
    topic_in: str = ""  # "": a new topic
    topic_out: str = ""
    guarantee: Guarantee = "exactly_once"  # of the real-time workloads; the others have each engine's default
    real_time_batch: str = "5 seconds"  # of Spark's real-time mode; the default is the shortest that Spark allows

    @property
    def name(self) -> str:
        pace = f"{self.rate:g}/s" if self.rate else f"{self.rows:,} rows"
        return f"{self.engine}, {self.workload}, {self.keys:,} keys, {pace}, {self.measure} from {self.source}"


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds. `histogram`: HdrHistogram V2 in base64, microseconds, to draw and merge runs."""

    count: int
    p50: float
    p90: float
    p99: float
    p999: float
    max: float
    histogram: str


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A completed checkpoint (of another engine: from the engine's log). Durations in ms."""

    at_ns: int  # triggered
    duration_ms: float
    phases: dict[str, float] = {}
    bytes: int | None = None
    full_bytes: int | None = None


class CheckpointFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoints of the measured interval. Phases are medians in ms; bytes per checkpoint (median)."""

    count: int
    p50_ms: float
    max_ms: float
    phases: dict[str, float]
    bytes: int | None
    mean_bytes: float | None  # includes the occasional merges of files, unlike the median
    full_bytes: int | None
    requests: float | None  # calls to the checkpoint store per checkpoint


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """A tenth of a second of the measured interval.

    Seconds from the beginning of the checkpoint; median and worst latency in ms of the rows that were due then."""

    at_s: float
    p50: float
    max: float


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Report of an engine's process at the end of a run."""

    version: str
    settings: dict[str, str] = {}
    checkpoints: list[Checkpoint] = []


class BoundedRun(msgspec.Struct, frozen=True, array_like=True):
    """A query over a bounded input, from start to end in an existing session."""

    rows: int
    seconds: float
    cpu_s: float | None = None  # of all processes; older files have none


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """An object of `runs` in results.json."""

    engine: str
    version: str
    workload: str
    measure: Measure
    source: Source
    sink: Sink
    round: int
    rate: float
    rows: int  # of a bounded input: the most requested
    keys: int
    parallelism: int
    interval_ms: int
    seconds: float
    started: str
    error: str | None = None
    settings: dict[str, str] = {}
    latency_target_ms: float | None = None
    processed: Percentiles | None = None
    visible: Percentiles | None = None
    appended: Percentiles | None = None  # until the broker appended the record; real-time workloads only
    guarantee: Guarantee = "exactly_once"  # real-time workloads only
    held: bool | None = None  # the backlog did not grow
    bounded: list[BoundedRun] = []  # over the small and the large input
    rows_per_s: float | None = None  # whole query over the large input
    rows_per_s_steady: float | None = None  # additional rows of the large run per additional second
    core_us_per_row: float | None = None  # also steady: additional core-seconds divided by additional rows
    cpu_s_per_million: float | None = None
    cpu_s: float | None = None
    cores: float | None = None  # `cpu_s` divided by the measured seconds; older files have only `cpu_s`
    peak_mb: float | None = None
    feeder_late_ms: float | None = None  # 99th percentile: the feeder's part of the latency, with Kafka
    gap_ms: float | None = None  # longest time without output
    checkpoint_gap_ms: float | None = None  # the same, around a checkpoint
    checkpoints: CheckpointFigures | None = None
    checkpoint_times_s: list[float] = []
    timeline: list[Moment] = []


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """A SIGKILL under load. Milliseconds from the kill; `timeline`: (seconds from the kill, output rows)."""

    victim: str  # slot, executor, coordinator
    rate: float
    keys: int
    first_output_ms: float
    first_due_ms: float  # first output row that was due after the kill
    caught_up_ms: float | None  # latency is back at the earlier value; None: not within the observed time
    next_checkpoint_ms: float | None  # the next completed checkpoint
    timeline: list[tuple[float, int]]


class KillCount(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of an engine under a schedule of kills, and the time without output after each kill."""

    engine: str
    workload: str
    guarantee: Guarantee
    rate: float
    kills: int
    fed: int
    lost: int = 0
    doubled: int = 0
    gaps_ms: list[float] = []  # from a kill until a row that was due after the kill is visible
    error: str | None = None


class CheckpointCost(msgspec.Struct, frozen=True, kw_only=True):
    """A cell of the grid (interval, keys, parallelism): keyed count at full speed, steady rate.

    Interval 0: only the last checkpoint."""

    interval_ms: int
    keys: int
    parallelism: int
    round: int
    rows_per_s: float
    checkpoints: CheckpointFigures | None


class CheckpointSize(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of a checkpoint for `keys` of 100 incompressible bytes; `changed` rows/s change a key each."""

    keys: int
    changed: float
    changed_bytes: float  # between two checkpoints
    interval_ms: int
    storage: Storage
    round: int
    uploaded_by_changed: float | None  # mean bytes of a checkpoint, divided by `changed_bytes`
    checkpoints: CheckpointFigures | None
    processed: Percentiles | None
    gap_ms: float | None
    checkpoint_gap_ms: float | None
    error: str | None = None


class RateHeld(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rate an engine held: `tried` are (rows per second, held)."""

    engine: str
    workload: str
    keys: int
    source: Source
    round: int
    rate: float
    tried: list[tuple[float, bool]]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's answer to a query over `events` events, compared with a batch of Spark SQL."""

    workload: str
    engine: str
    events: int
    rows: int
    same: bool
    columns: list[str]  # compared columns


class Results(msgspec.Struct, kw_only=True):
    """results.json."""

    machine: dict[str, str] = {}
    command: str = ""
    started: str = ""
    runs: list[RunResult] = []
    rates: list[RateHeld] = []
    recoveries: list[Recovery] = []
    grid: list[CheckpointCost] = []
    sizes: list[CheckpointSize] = []
    targets: list[RunResult] = []  # of `latency-targets`
    growth: list[RunResult] = []
    real_time: list[RunResult] = []
    kill_counts: list[KillCount] = []  # of `real-time --kills`
    backlogs: list[RunResult] = []
    answers: list[Answer] = []
    left_out: dict[str, str] = {}  # engine, or another part that did not run -> reason


def encoded(results: Results) -> bytes:
    return msgspec.json.format(msgspec.json.encode(results), indent=1)


def decoded(text: bytes) -> Results:
    return msgspec.json.decode(text, type=Results)
