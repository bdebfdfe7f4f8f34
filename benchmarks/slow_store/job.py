"""A job as a separate program that reports as JSON lines; the slow store's cells start and kill it.

`order.processes`: coordinator and slots are a process each, as on a cluster (this program replaces Spark). Otherwise
all are in this process (`start_local`); with `order.kills` the job is on Spark, whose slots are killed.
"""

import contextlib
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from barrier_runtime import CallableSink, Dataflow, DeltaSink, IcebergSink, JsonlSink, KafkaSink, PostgresSink, count
from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator
from barrier_runtime.coordinator.option_table import OPTIONS
from barrier_runtime.coordinator.status.status import CheckpointStatus, JobStatus
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.spark.task import SlotSettings, run_slot
from barrier_runtime.state.store.open import open_store

NAME = "slow-store"
_LOOK_S = 0.005
_ASK_S = 0.05  # more if an answer costs the coordinator a request
_SAMPLE_S = 2.0
_LEASE_S = 30.0
_SLOTS_COME_S = 240.0  # eight processes that start on two cores


PAYLOAD_BYTES = 500
_PAYLOAD = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("payload", pa.binary())])


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The job. `target`: the sink's URL, a table's URL or name, or a topic."""

    store: str  # checkpoints
    sink: str = "files"  # a name of `SINKS`
    target: str = ""
    properties: dict[str, str] = {}  # of the sink: an Iceberg catalog's, Kafka's bootstrap, PostgreSQL's table
    sink_options: dict[str, Any] = {}  # left out if this release does not know them
    payload: bool = False  # rows of `PAYLOAD_BYTES` into the sink, without a count
    commit_times: str = ""  # a file for the time of each commit, of Iceberg
    read: str = ""  # "jsonl" or "parquet": these files are read; empty: rows are generated at `rate`
    inputs: list[str] = []
    rows: int = 0  # of the files
    interval_s: float = 1.0
    rate: float = 10_000.0
    keys: int = 10_000
    slots: int = 2
    processes: bool = False
    kills: int = 0
    warm_up_s: float = 8.0
    seconds: float = 60.0
    minute_s: float = 0.0  # interval of a soak's reports; 0: none
    checkpoints: int = 0  # ends the measurement after this number of complete checkpoints; 0: after `seconds`
    options: dict[str, Any] = {}
    # of a slot's process
    slot: int = 0
    run_id: str = ""
    secret: str = ""
    control: tuple[str, int] = ("", 0)


class Checkpoint(msgspec.Struct, frozen=True):
    """Milliseconds."""

    number: int
    triggered_ms: int
    total: int
    ack: int | None
    manifest: int | None
    decision: int | None
    commit: int | None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The job at a moment; checkpoints and latency (of a minute at most) are of the time before that moment."""

    checkpoints: list[Checkpoint] = []
    completed: int = 0
    behind: int = 0  # completed checkpoints that are not visible yet
    visible_p50: float | None = None
    visible_p99: float | None = None
    records: int = 0
    condition: str = ""
    slow_commits: int = 0
    recoveries_ms: list[tuple[int, int, int]] = []  # until slots are there, from there until the job runs, the sum


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """`kind`: starting, running, first row, visible, begin, minute, end, done, failed."""

    kind: str
    at: float  # seconds since the epoch
    figures: Figures | None = None
    error: str = ""


_ENCODER = msgspec.json.Encoder()
ORDERS = msgspec.json.Decoder(Order)
EVENTS = msgspec.json.Decoder(Event)


def _known(sink: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Options that this release's sink has, because benchmarks compare it with earlier releases."""
    names = inspect.signature(sink).parameters
    return {name: value for name, value in given.items() if name in names}


def _sink(order: Order) -> Any:
    given = order.properties
    if order.sink == "files":
        return JsonlSink(order.target, **_known(JsonlSink, order.sink_options))
    if order.sink == "delta":
        return DeltaSink(order.target, **_known(DeltaSink, order.sink_options))
    if order.sink == "iceberg":
        made = IcebergSink(order.target, properties=given, **_known(IcebergSink, order.sink_options))
        return made if not order.commit_times else _timed(made, order.commit_times)
    if order.sink == "kafka":
        return KafkaSink(given["bootstrap"], order.target, key="key", guarantee="exactly_once")
    if order.sink == "postgres":
        return PostgresSink(order.target, given["table"])
    return CallableSink(_discard)


def _timed(sink: IcebergSink, file: str) -> IcebergSink:
    """The sink, which records each commit in `file`.

    A record has the end, the milliseconds, and the milliseconds of processor time of the commit's own thread."""

    class Timed(IcebergSink):
        def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
            began, cpu_began = time.monotonic(), time.thread_time()
            super().commit_globally(checkpoint, committables)
            took_ms, cpu_ms = (time.monotonic() - began) * 1000, (time.thread_time() - cpu_began) * 1000
            if committables:
                with open(file, "a") as told:
                    told.write(f"{time.time():.3f} {took_ms:.2f} {cpu_ms:.2f}\n")

    sink.__class__ = Timed
    return sink


def _discard(rows: pa.RecordBatch) -> None:
    """Does nothing: rows are not measured here."""


def _with_payload(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with bytes that no encoding makes smaller."""
    many = rows.num_rows
    offsets = np.arange(many + 1, dtype=np.int32) * PAYLOAD_BYTES
    data = [None, pa.py_buffer(offsets), pa.py_buffer(os.urandom(many * PAYLOAD_BYTES))]
    return pa.RecordBatch.from_arrays([*rows.columns, pa.Array.from_buffers(pa.binary(), many, data)], schema=_PAYLOAD)


def flow_of(order: Order) -> Dataflow:
    flow = Dataflow(NAME)
    if order.read:
        rows = (
            flow.read_jsonl("rows", order.inputs) if order.read == "jsonl" else flow.read_parquet("rows", order.inputs)
        )
        rows.sink("out", _sink(order))
    else:
        clicks = flow.rate("clicks", rows_per_second=order.rate, keys=order.keys)
        if order.payload:
            clicks.select(["key", "value"]).map_batches(_with_payload, schema=_PAYLOAD).sink("out", _sink(order))
            return flow
        if order.sink != "files":  # tables and databases refuse nanoseconds
            clicks = clicks.select(["key", "value"])
        clicks.key_by("key").aggregate("counts", n=count()).sink("out", _sink(order))
    return flow


def _options(order: Order) -> dict[str, Any]:
    given = {name: value for name, value in order.options.items() if name in OPTIONS}
    base: dict[str, Any] = {
        "parallelism": order.slots,
        "checkpoints": order.store,
        "checkpoint_interval": order.interval_s,
    }
    if order.processes:
        base["resource_wait_timeout"] = _SLOTS_COME_S
    return {**base, **given}


# ---------------------------------------------------------------- ways to run


@contextlib.contextmanager
def _in_this_process(order: Order) -> Iterator[Callable[[], JobStatus]]:
    yield flow_of(order).start_local(**_options(order)).status


@contextlib.contextmanager
def _on_spark(order: Order) -> Iterator[Callable[[], JobStatus]]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with flow_of(order).start(master=f"local[{order.slots}]", **_options(order)) as handle:
        yield handle.status


def _prepared(order: Order) -> tuple[PreparedJob, JobOptions]:
    given: dict[str, Any] = {"run_id": order.run_id} if order.run_id else {}
    options = JobOptions.from_keywords({**_options(order), "coordinator_lease": _LEASE_S, **given})
    return PreparedJob(flow_of(order).plan, options), options


def _be_a_slot(order: Order) -> None:
    job, options = _prepared(order)
    settings = SlotSettings(
        graph=job.graph,
        options=options.for_slots(),
        secret=bytes.fromhex(order.secret),
        control_addresses=(order.control,),
        storage_url=order.store,
    )
    run_slot(order.slot, order.slot + 1, settings)


@contextlib.contextmanager
def _in_processes(order: Order) -> Iterator[Callable[[], JobStatus]]:
    job, _ = _prepared(order)
    job.prove(open_store(order.store))
    with EmbeddedCoordinator(order.store) as coordinator:
        reply = coordinator.submit(job.spec)
        slots = []
        for slot in range(order.slots):
            own = msgspec.structs.replace(
                order,
                slot=slot,
                run_id=job.spec.run_id,
                secret=reply.secret,
                control=(reply.control_host, reply.control_port),
            )
            command = [sys.executable, "-m", "benchmarks.slow_store.job", "--slot"]
            slots.append(subprocess.Popen(command, stdin=subprocess.PIPE))
            stdin = slots[-1].stdin
            assert stdin is not None
            stdin.write(_ENCODER.encode(own) + b"\n")
            stdin.close()

        def status() -> JobStatus:
            time.sleep(_ASK_S)
            if any(slot.poll() is not None for slot in slots):
                raise RuntimeError("a slot's process ended")
            return coordinator.client.status(NAME, job.spec.run_id)

        try:
            yield status
        finally:
            for process in slots:
                process.kill()
                process.wait()


# ---------------------------------------------------------------- reports


def _tell(kind: str, figures: Figures | None = None, error: str = "") -> None:
    sys.stdout.buffer.write(_ENCODER.encode(Event(kind=kind, at=time.time(), figures=figures, error=error)) + b"\n")
    sys.stdout.buffer.flush()


def _until(status: Callable[[], JobStatus], holds: Callable[[JobStatus], bool], kind: str) -> JobStatus:
    while True:
        found = status()
        if found.outcome in ("failed", "cancelled", "fenced"):
            raise RuntimeError(f"the job is {found.outcome}: {found.error}")
        if holds(found):
            _tell(kind)
            return found
        time.sleep(_LOOK_S)


def _checkpoint(found: CheckpointStatus) -> Checkpoint:
    return Checkpoint(
        found.checkpoint,
        found.triggered_ms,
        found.duration_ms,
        found.ack_duration_ms,
        found.persist_duration_ms,
        found.decide_duration_ms,
        found.commit_duration_ms,
    )


class _Seen:
    """Checkpoints of all looks at the status, which has only the last hundred."""

    def __init__(self) -> None:
        self._found: dict[int, Checkpoint] = {}

    def look(self, status: JobStatus) -> None:
        for each in status.checkpoints.history:
            if each.outcome == "completed" or each.ack_duration_ms is not None:
                self._found[each.checkpoint] = _checkpoint(each)

    def figures(self, status: JobStatus, since_ms: float, before: int) -> Figures:
        latency = status.latency_last_minute.get("out:visible") or status.latency.get("out:visible")
        last = status.checkpoints.last_completed
        through = min(status.commits.through.values(), default=0)
        return Figures(
            checkpoints=[each for each in self._found.values() if each.triggered_ms >= since_ms],
            completed=status.checkpoints.completed - before,
            behind=max(0, (last.checkpoint if last is not None else 0) - through),
            visible_p50=None if latency is None else latency.p50,
            visible_p99=None if latency is None else latency.p99,
            records=status.records,
            condition=f"{status.condition} {status.condition_reason}".strip(),
            slow_commits=len(getattr(status.commits, "slow", ())),
            recoveries_ms=[
                (each.slots_ready_ms - each.started_ms, each.running_ms - each.slots_ready_ms, each.duration_ms)
                for each in status.recoveries
                if each.slots_ready_ms and each.running_ms and each.duration_ms
            ],
        )


def _shows_new_rows(found: JobStatus) -> bool:
    """Whether each sink has made a checkpoint of this run visible. Latencies come later, with heartbeats."""
    through = found.commits.through.values()
    return bool(through) and min(through) > found.restored_checkpoint


def _measure(order: Order, status: Callable[[], JobStatus]) -> None:
    """Measures a stream of generated rows."""
    _until(status, lambda found: found.phase in ("running", "finishing", "finished"), "running")
    _until(status, lambda found: found.records > 0, "first row")
    _until(status, _shows_new_rows, "visible")
    time.sleep(order.warm_up_s)
    _tell("begin")
    seen, began = _Seen(), time.time()
    before = status().checkpoints.completed
    reported = began
    while True:
        found = status()
        seen.look(found)
        now = time.time()
        if order.checkpoints and found.checkpoints.completed >= order.checkpoints:
            break
        if now >= began + order.seconds:
            break
        if order.minute_s and now >= reported + order.minute_s:
            _tell("minute", seen.figures(found, reported * 1000, before))
            reported += order.minute_s
        time.sleep(min(_SAMPLE_S, max(0.0, began + order.seconds - now)) if not order.checkpoints else 0.05)
    _tell("end", seen.figures(found, began * 1000, before))


def _kill_slots(order: Order, status: Callable[[], JobStatus]) -> None:
    _until(status, lambda found: found.phase == "running", "running")
    _until(status, lambda found: found.checkpoints.completed >= 3, "begin")
    for number in range(order.kills):
        before = status()
        time.sleep(2 * order.interval_s + 0.37 * number % order.interval_s)  # not always at the same moment
        os.kill(before.slots[number % len(before.slots)].pid, signal.SIGKILL)
        many = len(before.recoveries)

        def runs(found: JobStatus, many: int = many) -> bool:
            return len(found.recoveries) > many and found.recoveries[-1].running_ms is not None

        _until(status, runs, "recovered")
    _tell("end", _Seen().figures(status(), 0, 0))


def _read(order: Order, status: Callable[[], JobStatus]) -> None:
    """Reads files until all rows are read or the time is over."""
    _until(status, lambda found: found.phase in ("running", "finishing", "finished"), "begin")
    until = time.monotonic() + order.seconds
    found = _until(status, lambda found: found.records >= order.rows or time.monotonic() >= until, "read")
    _tell("end", Figures(records=found.records))


def _end_with_who_started_it() -> None:
    """Ends this process with its parent, so that no job outlives the measuring program."""
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    order = ORDERS.decode(sys.stdin.buffer.readline())
    if "--slot" in sys.argv:
        _be_a_slot(order)
        return
    threading.Thread(target=_end_with_who_started_it, daemon=True).start()
    run = _in_processes if order.processes else _on_spark if order.kills else _in_this_process
    try:
        if order.processes:
            _prepared(order)  # imports are not part of the start
        _tell("starting")
        with run(order) as status:
            (_kill_slots if order.kills else _read if order.read else _measure)(order, status)
            signal.pause()  # the parent kills this process
    except Exception as error:
        _tell("failed", error=f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main()
