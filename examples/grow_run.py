"""`make run EXAMPLE=grow`: changes the running job of `grow` in every way, and checks the result.

While the rate of the stream doubles, the job is rescaled from 2 to 4 slots; then the second version of the program
takes over; a savepoint is forked into a job of another name; at the end the state is read as a Spark DataFrame and
compared with the output. Writes build/run/summary.json. Exits 0 only if no row was lost, doubled, wrong or read twice,
in either job.
"""

import dataclasses
import json
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec

from barrier_runtime import Dataflow
from barrier_runtime.launch.job_handle import JobHandle
from barrier_runtime.spark.session import make_session, stop_session
from barrier_runtime.spark.state_source import BarrierStateSource
from examples.grow import SECOND, build
from examples.grow_data import METERS, STOPS, Readings, read_again, reading_of

SECONDS = 30.0
_RATE = 4_000.0  # readings per second at first
_PATIENCE_S = 300.0


class GrowSummary(msgspec.Struct):
    """Summary of a run.

    `lost`, `doubled`, `wrong` count rows of both jobs, and state entries that differ from the output."""

    records: int
    rescale_pause_ms: int
    replace_pause_ms: int
    replayed: int  # rows read twice, in all generations of the job
    forked_from: int  # checkpoint
    state_rows: int
    lost: int = 0
    doubled: int = 0
    wrong: int = 0

    @property
    def right(self) -> bool:
        return self.lost == self.doubled == self.wrong == self.replayed == 0


def run_grow(run: Path, seconds: float) -> int:
    """Runs the example in the fresh folder `run`; returns the exit code."""
    readings = Readings(_RATE, round(_RATE * 1.5 * seconds), str(run / "notes"))
    session = make_session("grow", "local[10]", {})
    try:
        summary = _through_everything(session, run, readings)
        _compare_state(summary, _state(session, run), run)
    finally:
        stop_session(session)
    (run / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
    print(
        f"{summary.records:,} readings; rescaled 2 -> 4 with a pause of {summary.rescale_pause_ms} ms, replaced with "
        f"one of {summary.replace_pause_ms} ms; read twice {summary.replayed}, lost {summary.lost}, doubled "
        f"{summary.doubled}, wrong {summary.wrong}\n{run / 'summary.json'}"
    )
    return 0 if summary.right else 1


def _through_everything(session: Any, run: Path, readings: Readings) -> GrowSummary:
    out, of_fork, savepoint = str(run / "out"), str(run / "out-fork"), str(run / "savepoint")
    with _started(session, run, build(out, readings)) as handle:
        _read(handle, 0.4 * readings.rows)
        rescaled = handle.rescale(4)
        _read(handle, 0.65 * readings.rows)
        replaced = handle.replace(build(out, readings, SECOND))
        _let_go_on(readings, "replaced")
        _read(handle, 0.1 * readings.rows)  # slots of another program count from zero
        taken = handle.savepoint(savepoint)
        _let_go_on(readings, "saved")
        again = dataclasses.replace(readings, notes=str(run / "notes-fork"))
        _let_go_on(again, *STOPS)
        fork = build(of_fork, again, SECOND, name="grow-fork")
        with _started(session, run, fork, restore=savepoint) as forked:
            forked.wait(timeout=_PATIENCE_S)
        handle.wait(timeout=_PATIENCE_S)
    replayed = read_again(readings.notes) + read_again(again.notes)
    summary = GrowSummary(readings.rows, rescaled.pause_ms, replaced.pause_ms, replayed, taken.checkpoint, 0)
    rows = _rows(out)
    _compare(summary, rows, readings.rows)
    _compare_fork(summary, rows, _rows(of_fork))
    return summary


def _started(session: Any, run: Path, flow: Dataflow, **options: Any) -> JobHandle:
    checkpoints = str(run / "checkpoints")
    return flow.start(spark=session, parallelism=2, checkpoints=checkpoints, checkpoint_interval=0.5, **options)


def _read(handle: JobHandle, rows: float) -> None:
    until = time.monotonic() + _PATIENCE_S
    while handle.status().records < rows:
        if time.monotonic() > until or handle.status().outcome is not None:
            raise TimeoutError(f"{rows:.0f} rows were not read within {_PATIENCE_S} s: {handle.status().reason}")
        time.sleep(0.05)


def _let_go_on(readings: Readings, *stops: str) -> None:
    """Lets readers go on beyond these stops."""
    for stop in stops:
        Path(readings.notes).mkdir(exist_ok=True)
        (Path(readings.notes) / stop).touch()


def _rows(folder: str) -> list[dict[str, Any]]:
    files = [file for file in sorted(Path(folder).glob("*.jsonl")) if not file.name.startswith(("_", "."))]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def _by_meter(rows: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["n"]):
        found[row["meter"]].append(row)
    return found


def _compare(summary: GrowSummary, rows: list[dict[str, Any]], records: int) -> None:
    """Row n of a meter is the meter's nth reading; from some row on, each row has the highest reading since then."""
    times = Counter(row["number"] for row in rows)
    summary.lost += records - len(times)
    summary.doubled += len(rows) - len(times)
    for meter, of_meter in _by_meter(rows).items():
        highest: int | None = None
        for n, row in enumerate(of_meter, start=1):
            if "highest" in row:
                highest = max(row["reading"], highest if highest is not None else row["reading"])
            expected = (n, meter + (n - 1) * METERS, reading_of(row["number"]), highest)
            summary.wrong += expected != (row["n"], row["number"], row["reading"], row.get("highest"))
        summary.wrong += highest is None  # no row of the second version


def _compare_fork(summary: GrowSummary, rows: list[dict[str, Any]], forked: list[dict[str, Any]]) -> None:
    """The fork must continue after the savepoint as the job did: with exactly the last rows of each meter."""
    original = _by_meter(rows)
    copies = _by_meter(forked)
    summary.wrong += not copies
    for meter, of_meter in copies.items():
        summary.wrong += original[meter][-len(of_meter) :] != of_meter


def _state(session: Any, run: Path) -> list[Any]:
    session.dataSource.register(BarrierStateSource)
    reader = session.read.format("barrier-state").option("path", str(run / "checkpoints")).option("job", "grow")
    found: list[Any] = reader.option("state", "totals.running").load().collect()
    return found


def _compare_state(summary: GrowSummary, state: list[Any], run: Path) -> None:
    """The last checkpoint's entry of each meter must equal the meter's last row."""
    last = {meter: of_meter[-1] for meter, of_meter in _by_meter(_rows(str(run / "out"))).items()}
    summary.state_rows = len(state)
    held = {row["meter"]: row.asDict() for row in state}
    summary.wrong += len(last.keys() ^ held.keys()) + len(state) - len(held)
    for meter, row in last.items():
        found = held.get(meter, {})
        summary.wrong += (found.get("rows"), found.get("max:reading")) != (row["n"], row["highest"])
