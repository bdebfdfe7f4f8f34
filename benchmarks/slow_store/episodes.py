"""Cells without a stream: single requests, a start behind a log, a kill, and reading of files."""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
import uuid

import msgspec

from benchmarks.slow_store.delay import NONE, Delay
from benchmarks.slow_store.inputs import Input, jsonl_input, parquet_input, small_files
from benchmarks.slow_store.job import Order
from benchmarks.slow_store.place import START_S, Place, Settings, numbers, place, result_of, stream_order, with_fields
from benchmarks.slow_store.requests import counted, in_sequence, read_requests
from benchmarks.slow_store.result import CellResult, Value
from benchmarks.slow_store.running import JobFailed, cpu_of, import_path, running
from benchmarks.slow_store.servers import RangeServer

_LOADED = msgspec.msgpack.Decoder(dict[str, bytes])

_CALLS = """
import json, sys, time
from barrier_runtime.state.store.open import open_store
url, many = sys.argv[1], int(sys.argv[2])
store = open_store(url)
body, found = b"x" * 100_000, {}
store.put("warm", body)
calls = {
    "PUT": lambda n: store.put(f"put/{n}", body),
    "PUT IF": lambda n: store.put_if_absent(f"absent/{n}", body[:1000]),
    "GET": lambda n: store.get(f"absent/{n}"),
    "DELETE": lambda n: store.delete([f"put/{n}"]),
}
for name, call in calls.items():
    wall, cpu = time.perf_counter(), time.process_time()
    for n in range(many):
        call(n)
    found[name] = ((time.process_time() - cpu) * 1000 / many, (time.perf_counter() - wall) * 1000 / many)
print(json.dumps(found))
"""


def calls(settings: Settings) -> CellResult:
    """Processor time of sequential requests to an endpoint without delay: 100 kB are put, 1 kB is got."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    with place(settings, NONE) as where:
        done = subprocess.run(
            [sys.executable, "-c", _CALLS, f"{where.url}/calls", str(settings.calls)],
            cwd=settings.folder,  # python looks for modules in its working folder first
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, import_path(settings.tree, settings.folder)))},
            check=False,
        )
    if done.returncode:
        raise JobFailed(done.stderr.strip()[-600:])
    found = json.loads(done.stdout.splitlines()[-1])
    figures: dict[str, Value] = {f"CPU ms {name}": cpu_ms for name, (cpu_ms, _) in found.items()}
    return result_of(settings, {**figures, "CPU ms": statistics.mean(cpu_ms for cpu_ms, _ in found.values())})


# ---------------------------------------------------------------- start and recovery


def start(settings: Settings, records: int) -> CellResult:
    """Start of a job with `records` checkpoints in its log, after SIGKILL.

    Times: until the first row is read, and until the first new rows are visible. The last 45 records are the job's own;
    `long_log` makes the records before."""
    own = 45
    with place(settings, settings.delay) as where:
        assert where.emulator is not None
        if records:
            where.emulator.load(_made(settings, records))
        order = stream_order(settings, where.url, "files", 0.5, 2)
        order = with_fields(order, checkpoints=own, warm_up_s=0.0, processes=False)
        first = with_fields(order, options={"restore": "none", "allow_replay": True} if records else {})
        with running(first, settings.folder / "job", settings.tree) as job:
            job.until("end", START_S + 60.0)
        time.sleep(1.0)  # for requests that the killed process had sent
        order = with_fields(order, checkpoints=0, seconds=1.0)
        with running(order, settings.folder / "job", settings.tree) as job:
            began = job.until("starting", START_S).at
            times = {kind: (job.until(kind, START_S).at - began) * 1000 for kind in ("running", "first row", "visible")}
        to_row = where.requests(began, began + times["first row"] / 1000)
        to_visible = where.requests(began, began + times["visible"] / 1000)
    return result_of(
        settings,
        {
            "until it runs": times["running"],
            "until the first row": times["first row"],
            "until rows are visible": times["visible"],
            "requests until the first row": float(len(to_row)),
            "waits until the first row": float(in_sequence(to_row)),
            "requests until visible": float(len(to_visible)),
            "waits until visible": float(in_sequence(to_visible)),
        },
        requests=numbers(counted(to_row)),
    )


def _made(settings: Settings, records: int) -> dict[str, bytes]:
    folder = settings.folder / "long-log" / uuid.uuid4().hex
    order = Order(store=str((folder / "ck").resolve()), target=str((folder / "out").resolve()), interval_s=0.2)
    with running(with_fields(order, checkpoints=3, warm_up_s=0.0), settings.folder / "job", settings.tree) as job:
        job.until("end", START_S)
    out = folder / "made"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.slow_store.long_log", str(folder), str(records), str(out)],
        cwd=settings.folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, import_path(settings.tree, settings.folder)))},
        check=False,
    )
    if done.returncode:
        raise JobFailed(done.stderr.strip()[-600:])
    made = _LOADED.decode(out.read_bytes())
    out.unlink()
    return made


def kills(settings: Settings, delay: Delay | None) -> CellResult:
    """SIGKILL of a slot on Spark, 200,000 keys: until the job runs again."""
    with place(settings, delay) as where:
        order = stream_order(settings, where.url, "files", 1.0, 2)
        order = with_fields(order, keys=200_000, kills=settings.kills, processes=False)
        with running(order, settings.folder / "job", settings.tree) as job:
            job.until("begin", START_S)
            job.until("end", 60.0 * settings.kills)
            end = job.events[-1]
    assert end.figures is not None
    found = end.figures.recoveries_ms[-settings.kills :]
    return result_of(
        settings,
        {
            "kills": float(len(found)),
            "slots there again": statistics.median(slots for slots, _, _ in found),
            "restored after that": statistics.median(restore for _, restore, _ in found),
            "runs again": statistics.median(whole for _, _, whole in found),
            "runs again, all": ", ".join(f"{whole:,}" for _, _, whole in sorted(found)),
        },
    )


# ---------------------------------------------------------------- reading


def reading(settings: Settings, kind: str, slots: int, delay: Delay | None) -> CellResult:
    """Files read and discarded: `small` (3 rows each), `jsonl` or `parquet` (large).

    With a delay a server of ranges has the files, and the job's checkpoints are in the emulator."""
    with contextlib.ExitStack() as kept:
        where, given = kept.enter_context(place(settings, delay)), _input(settings, kind)
        server = RangeServer(given.folder, delay) if delay is not None else None
        if server is not None:
            kept.callback(server.close)
            server.start()
        urls = [str(given.folder.resolve()) if server is None else server.url]
        order = with_fields(
            stream_order(settings, where.url, "discard", 1.0, slots),
            read="parquet" if kind == "parquet" else "jsonl",
            inputs=urls,
            rows=given.rows,
            processes=False,
        )
        with running(order, settings.folder / "job", settings.tree) as job:
            begin = job.until("begin", START_S)
            before = {"job": job.cpu_s(), **_cpu_s(where, server)}
            read = job.until("read", settings.seconds + 60.0)
            after = {"job": job.cpu_s(), **_cpu_s(where, server)}
            end = job.until("end", 60.0)
        # From the start: a short input may be read before "begin".
        requests = read_requests(server.requests_log, 0.0, read.at) if server is not None else []
    took = read.at - begin.at
    assert end.figures is not None
    rows = min(end.figures.records, given.rows)
    figures: dict[str, Value] = {
        "rows/s": rows / took,
        "MB/s": given.bytes * rows / given.rows / took / 1e6,
        "seconds": took,
        "million rows per core": rows / 1e6 / max(0.01, after["job"] - before["job"]),
        "requests": float(len(requests)),
    }
    if kind == "small":
        figures["files/s"] = rows / (given.rows / given.files) / took
    return result_of(
        settings,
        figures,
        requests=numbers(counted(requests)),
        cores={name: (after[name] - before[name]) / took for name in after},
    )


def _cpu_s(where: Place, server: RangeServer | None) -> dict[str, float]:
    """Processor time of the servers; the server of ranges counts as emulator."""
    found = where.cpu_s()
    return found if server is None else {**found, "emulator": found["emulator"] + cpu_of(server.pids)}


def _input(settings: Settings, kind: str) -> Input:
    folder = settings.folder / "input"
    if kind == "small":
        return small_files(folder, settings.small_files)
    return (jsonl_input if kind == "jsonl" else parquet_input)(folder, settings.rows)
