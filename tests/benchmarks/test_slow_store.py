"""The slow store's cells and their table: a short cell as a smoke test, the made log, the soak's verdict."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from barrier_runtime.connectors.files.sink.commit_log import read_commit_log
from barrier_runtime.coordinator.log.records import Complete, Fence, decode_record
from barrier_runtime.launch.local_handle import LocalJobHandle
from barrier_runtime.state.store.open import open_store
from benchmarks.__main__ import main
from benchmarks.slow_store.cells import CHOSEN, GRID, NAMED
from benchmarks.slow_store.command import measured
from benchmarks.slow_store.delay import Delay
from benchmarks.slow_store.job import NAME, Checkpoint, Order, flow_of
from benchmarks.slow_store.long_log import commit_log, decision_log
from benchmarks.slow_store.place import Settings
from benchmarks.slow_store.ranges import MappedFiles
from benchmarks.slow_store.requests import Request
from benchmarks.slow_store.result import CellResult, Kept, load
from benchmarks.slow_store.soak import Minute, verdict
from benchmarks.slow_store.streams import waits
from benchmarks.slow_store.table import LINES, markdown
from tests.waiting import until


@pytest.mark.slow
def test_a_short_cell_has_every_figure_and_its_table(tmp_path: Path, capsys) -> None:
    short = ["--seconds", "8", "--warm-up", "0", "--rate", "1000", "--delay", "3", "--slow-share", "0"]
    assert main(["slow-store", "--only", "files, 1 s", *short, "--folder", str(tmp_path)]) == 0
    (cell,) = load(tmp_path / "slow-store/results.json").cells
    assert (cell.cell, cell.tree, cell.error) == ("files, 1 s", "now", "")
    assert {"checkpoint", "ack", "decision", "commit", "visible p50", "visible p99"} <= cell.figures.keys()
    assert {"waits to the decision", "requests per checkpoint", "job's CPU ms per checkpoint"} <= cell.figures.keys()
    # Uploads may be slower than the interval on a busy machine: the reason tells of that.
    assert str(cell.figures["condition"]).startswith("RUNNING")
    assert {"PUT IF decision log", "PUT staged rows"} <= cell.requests.keys()
    assert set(cell.cores) == {"job", "emulator", "proxy"}
    printed = capsys.readouterr().out
    wanted = [line.label for line in LINES if line.cells == ("files, 1 s",)]
    assert len(wanted) >= 4
    assert all(f"| {label} |" in printed for label in wanted)
    assert printed == (tmp_path / "slow-store/table.md").read_text() + "\n"


@pytest.mark.slow
def test_files_are_read_by_ranges_from_a_server_that_answers_late(tmp_path: Path) -> None:
    settings = Settings(tmp_path, seconds=30.0, delay=Delay(2.0, slow_share=0.0), rows=20_000, small_files=5)
    for name, rows in (("JSON lines, 1 slot", 40_000), ("Parquet, 1 slot", 80_000), ("small files, 1 slot", 15)):
        found = measured(name, CHOSEN[name], settings)
        assert found.error == ""
        speed, took = found.figures["rows/s"], found.figures["seconds"]
        assert isinstance(speed, float)
        assert isinstance(took, float)
        assert round(speed * took) == rows
        assert found.requests["GET rows"] >= 1


def test_a_mapped_file_is_answered_as_an_object(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"0123456789")
    files = MappedFiles(tmp_path)

    def asked(method: str, target: str, wanted: str = "") -> tuple[int, bytes]:
        field = f"Range: {wanted}\r\n" if wanted else ""
        status, parts = files.answer(f"{method} {target} HTTP/1.1\r\n{field}\r\n".encode())
        return status, b"".join(bytes(part) for part in parts[1:])

    assert asked("GET", "/files/a.jsonl", "bytes=2-4") == (206, b"234")
    assert asked("GET", "/files/a.jsonl", "bytes=7-99") == (206, b"789")
    assert asked("GET", "/files/a.jsonl", "bytes=-2") == (206, b"89")
    assert asked("GET", "/files/a.jsonl", "bytes=10-") == (416, b"")
    assert asked("GET", "/files/a.jsonl") == (200, b"0123456789")
    assert asked("HEAD", "/files/a.jsonl") == (200, b"")
    assert asked("GET", "/files/b.jsonl")[0] == 404
    assert asked("PUT", "/files/a.jsonl")[0] == 404
    status, listing = asked("GET", "/files?list-type=2&prefix=")
    assert (status, b"<Key>a.jsonl</Key>" in listing, b"<Size>10</Size>" in listing) == (200, True, True)


def test_each_line_of_the_table_names_cells_that_there_are() -> None:
    named = {cell for line in LINES for cell in line.cells}
    assert named == set(CHOSEN) | set(NAMED)
    assert len(GRID) == 4 * 4 * 4 * 2
    assert not set(GRID) & {*CHOSEN, *NAMED}


def test_the_table_has_a_column_per_commit_and_names_what_failed() -> None:
    figures = {"visible p50": 1_234.5, "visible p99": 2.25, "behind at the end": 3.0}
    kept = Kept({"cores": "2"}, "python -m benchmarks slow-store", [])
    for tree, p50 in (("now", 320.0), ("abc123", 23_396.0)):
        cell = CellResult(cell="files, 0.2 s", tree=tree, at="11-28 14:30", figures={**figures, "visible p50": p50})
        kept.add(cell)
    kept.add(CellResult(cell="files, 0.1 s", tree="now", at="11-28 14:31", error="JobFailed: no rows"))
    text = markdown(kept)
    assert "| files, 2 slots, 10,000 rows/s | abc123 | now | aim |" in text
    assert "| every 0.2 s: visible p50, p99 | 23,396, 2.2; behind at the end: 3 | 320, 2.2; behind" in text
    assert "- files, 0.1 s (now) failed: JobFailed: no rows" in text


def test_a_cell_that_fails_tells_its_error(tmp_path: Path) -> None:
    def cell(settings: Settings) -> CellResult:
        raise RuntimeError("first line\nmiddle\nlast line")

    found = measured("files, 1 s", cell, Settings(tmp_path))
    assert found.error == "RuntimeError: first line … last line"
    assert found.cell == "files, 1 s"


def test_waits_are_counted_before_and_behind_the_decision() -> None:
    def request(at_ms: float, ms: float) -> Request:
        return Request(at_ms / 1000, "PUT", "k", 200, 0, 0, ms)

    checkpoint = Checkpoint(7, 1_000, 200, 80, 60, 60, 100)
    before = [request(1_010, 50), request(1_010, 60), request(1_080, 50), request(1_140, 50)]
    behind = [request(1_201, 40), request(1_243, 40)]
    assert waits([checkpoint], [*before, *behind]) == {"waits to the decision": 3, "waits of the commit": 2}


@pytest.mark.slow
def test_a_job_goes_on_behind_a_made_log(tmp_path: Path) -> None:
    def run(folder: Path, checkpoints: int, **options: Any) -> None:
        order = Order(store=str(folder / "ck"), target=str(folder / "out"), rate=1_000.0)
        handle = flow_of(order).start_local(checkpoints=order.store, checkpoint_interval=0.05, **options)
        assert isinstance(handle, LocalJobHandle)
        until(lambda: min(handle.status().commits.through.values(), default=0) >= checkpoints)
        handle.stop("now")
        handle.wait()

    run(tmp_path / "sample", 2)
    records = 500
    for part, made in (("ck", decision_log), ("out", commit_log)):
        for key, data in made(tmp_path / "sample" / part, records).items():
            file = tmp_path / "long" / part / key
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
    run(tmp_path / "long", records + 2, restore="none", allow_replay=True)
    log = [decode_record(file.name, file.read_bytes()) for file in sorted((tmp_path / f"long/ck/{NAME}/log").iterdir())]
    second = next(record for record in log[1:] if isinstance(record, Fence))
    assert second.token == records + 2
    assert second.checkpoint_floor == records
    own = [record.checkpoint for record in log[second.token :] if isinstance(record, Complete)]
    assert own[:2] == [records + 1, records + 2]
    commits = read_commit_log(open_store(str(tmp_path / "long/out")), NAME, "out")
    assert [record.checkpoint for record in commits][: records + 1] == [*range(1, records + 1), records + 1]


def test_a_soak_tells_growth_from_noise() -> None:
    steady = [
        Minute(60.0 * n, 200 + n % 3, 20 + n % 5, 4 + n % 2, 9.0, 300.0, 900.0, 1_500.0, "RUNNING") for n in range(10)
    ]
    told, bounded = verdict(steady)
    assert bounded, told
    told, bounded = verdict([msgspec.structs.replace(each, commit_ms=50.0) for each in steady])
    assert not bounded
    assert "give a longer --delay" in told
    growing = [msgspec.structs.replace(each, staged=int(each.at_s)) for each in steady]
    told, bounded = verdict(growing)
    assert not bounded
    assert "staged +60.00 of 420 (grows)" in told
