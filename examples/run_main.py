"""`make run`: the main job on real data, two processes of it killed on the way, and its result checked row for row.

Kills a slot's Python process after a third of the records and the coordinator after two thirds, both with SIGKILL.
Writes build/run/summary.json; exits 0 only if nothing is lost, doubled or different from Spark SQL's batch answer.
"""

import argparse
import contextlib
import shutil
import sys
import time
from pathlib import Path

import msgspec
import pyarrow.dataset

from coordinator.status import JobStatus
from examples.flight_delays import build
from examples.flights_data import prepare
from examples.run_check import Verdict, check
from examples.run_observer import Observer
from examples.run_progress import display
from examples.run_summary import Summary, summarise
from examples.s3_server import s3_server

RUN = Path("build/run")
SECONDS = 25.0  # of replay
SLOW = 5  # times the planned length: then something is wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", choices=["file", "s3"], default="file", help="of checkpoints and output")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="length of the replay")
    chosen = parser.parse_args()
    shutil.rmtree(RUN, ignore_errors=True)
    RUN.mkdir(parents=True)
    flights = prepare(Path("build/data"))
    records = pyarrow.dataset.dataset(flights, format="parquet").count_rows()
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(s3_server()) if chosen.storage == "s3" else str(RUN.resolve())
        status, observer = stream(flights, records, root, chosen.seconds)
        print("checking against Spark SQL …", flush=True)
        verdict = check(flights, f"{root}/output")
        summary = summarise(status.job, f"{root}/checkpoints", records, verdict, observer)
    (RUN / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
    return report(summary, verdict, status)


def stream(flights: Path, records: int, root: str, seconds: float) -> tuple[JobStatus, Observer]:
    """Run the job to its end, with its two kills."""
    flow = build(flights, f"{root}/output", rows_per_second=records / seconds)
    with (
        flow.start(
            master="local[4,16]",
            parallelism=2,
            checkpoints=f"{root}/checkpoints",
            checkpoint_interval=0.5,
        ) as handle,
        display(records) as show,
    ):
        observer = Observer(handle, show)
        started = time.monotonic()
        observer.until("third of the records", lambda status: status.records >= records / 3, SLOW * seconds)
        observer.kill_slot()
        observer.until("two thirds of the records", lambda status: status.records >= records * 2 / 3, SLOW * seconds)
        observer.kill_coordinator()
        observer.until("end of the stream", lambda status: status.outcome == "finished", SLOW * seconds)
        show.say(f"finished after {time.monotonic() - started:.1f} s")
        return handle.wait(timeout=SLOW * seconds).status, observer


def report(summary: Summary, verdict: Verdict, status: JobStatus) -> int:
    for line in verdict.examples:
        print(line)
    late = sum(value for slot in status.slots for name, value in slot.metrics.items() if name.endswith("late_rows"))
    processed, visible = summary.processed_latency_ms, summary.visible_latency_ms
    print(
        f"{summary.records:,} records, {summary.windows:,} windows, {summary.checkpoints_completed} checkpoints in "
        f"{summary.generations} generations; "
        f"killed: {summary.slot_kills} slot, {summary.coordinator_kills} coordinator\n"
        f"lost {summary.lost}, duplicated {summary.duplicated}, mismatched {summary.mismatched}; "
        f"late rows dropped: {late:.0f}\n"
        f"processed latency p50 {processed.p50:.1f} ms, p99 {processed.p99:.1f} ms; "
        f"visible p50 {visible.p50:.1f} ms, p99 {visible.p99:.1f} ms; "
        f"checkpoint p50 {summary.checkpoint_ms.p50:.0f} ms; recovery {summary.recovery_ms} ms\n"
        f"{RUN / 'summary.json'}: {'matches' if summary.matches_batch else 'DOES NOT MATCH'} the batch answer"
    )
    return 0 if summary.matches_batch else 1


if __name__ == "__main__":
    sys.exit(main())
