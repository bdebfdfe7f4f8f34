"""A job of `make run` on Spark, with killed processes and servers, and a report."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from barrier_runtime import Dataflow
from barrier_runtime.coordinator.metric_table import LATE_ROWS
from barrier_runtime.coordinator.status.statistics import over_slots
from barrier_runtime.coordinator.status.status import JobStatus
from examples.run_check import Verdict
from examples.run_observer import Observer
from examples.run_progress import display
from examples.run_summary import Summary, summarise
from examples.servers import Server

RUN = Path("build/run")
SECONDS = 25.0  # of replay
_SLOW = 12  # multiple of the planned length that counts as a failure
_AWAY_S = 3.0  # downtime of a killed server


def run_job(
    flow: Dataflow,
    records: int,
    checkpoints: str,
    seconds: float,
    servers: Sequence[Server] = (),
    begin: Callable[[], object] = lambda: None,
    complete: Callable[[], bool] | None = None,
    known: Callable[[], str] = str,
) -> tuple[JobStatus, Observer]:
    """Runs the job to the end, with a killed slot, killed servers and a killed coordinator.

    `begin` is called when the job runs. `complete` returns whether all rows are visible; an endless job then stops.
    Without `complete` the job ends by itself. `known` returns text for the error of a job that does not end.
    """
    patience_s = _SLOW * max(seconds, SECONDS)
    with (
        flow.start(
            master="local[4,16]",
            parallelism=2,
            checkpoints=checkpoints,
            checkpoint_interval=0.5,
        ) as handle,
        display(records) as show,
    ):
        observer = Observer(handle, show)
        observer.until("generation that runs", lambda status: status.phase == "running", patience_s)
        begin()
        started = time.monotonic()
        observer.until("third of the records", _read(records / 3), patience_s)
        observer.kill_slot()
        for number, server in enumerate(servers, start=1):
            reached = records * (1 / 3 + number / (3 * (len(servers) + 1)))
            observer.until("next part of the records", _read(reached), patience_s)
            observer.kill_server(server, _AWAY_S)
        observer.until("two thirds of the records", _read(records * 2 / 3), patience_s)
        observer.kill_coordinator()
        if complete is not None:
            observer.until("whole result", lambda _: complete(), patience_s, known)
            handle.stop("checkpoint")
        observer.until("end of the stream", lambda status: status.outcome in ("finished", "cancelled"), patience_s)
        (RUN / "report.html").write_bytes(handle.report())
        show.say(f"finished after {time.monotonic() - started:.1f} s")
        return handle.wait(timeout=patience_s).status, observer


def _read(records: float) -> Callable[[JobStatus], bool]:
    return lambda status: status.records >= records


def conclude(status: JobStatus, observer: Observer, verdict: Verdict, records: int, checkpoints: str) -> int:
    """Writes and prints the summary. Returns the program's exit code: 0 only if the result is right."""
    summary = summarise(status.job, checkpoints, records, verdict, observer)
    (RUN / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
    return report(summary, verdict, status)


def report(summary: Summary, verdict: Verdict, status: JobStatus) -> int:
    for line in verdict.examples:
        print(line)
    late = over_slots(LATE_ROWS, (slot.metrics for slot in status.slots)) or 0
    processed, visible = summary.processed_latency_ms, summary.visible_latency_ms
    print(
        f"{summary.records:,} records, {summary.windows:,} rows of the result, "
        f"{summary.checkpoints_completed} checkpoints in {summary.generations} generations; "
        f"killed: {summary.slot_kills} slot, {summary.coordinator_kills} coordinator, {summary.server_kills} server\n"
        f"lost {summary.lost}, duplicated {summary.duplicated}, mismatched {summary.mismatched}; "
        f"late rows dropped: {late:.0f}\n"
        f"processed latency p50 {processed.p50:.1f} ms, p99 {processed.p99:.1f} ms; "
        f"visible p50 {visible.p50:.1f} ms, p99 {visible.p99:.1f} ms; "
        f"checkpoint p50 {summary.checkpoint_ms.p50:.0f} ms; recovery {summary.recovery_ms} ms\n"
        f"{RUN / 'report.html'}: what happened, and when\n"
        f"{RUN / 'summary.json'}: {'matches' if summary.matches_batch else 'DOES NOT MATCH'} the batch answer"
    )
    return 0 if summary.matches_batch else 1
