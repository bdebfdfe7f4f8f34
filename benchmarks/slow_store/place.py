"""Common parts of the cells: the settings of a run, and a job's fresh folder or S3 endpoint."""

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.slow_store.delay import REGION, Delay
from benchmarks.slow_store.emulator import EmulatedS3
from benchmarks.slow_store.job import Order
from benchmarks.slow_store.requests import Request
from benchmarks.slow_store.result import CellResult, Value
from benchmarks.slow_store.running import cpu_of
from benchmarks.slow_store.servers import SlowProxy, slow_s3

START_S = 300.0  # the longest wait for the start of a job


@dataclass(frozen=True)
class Settings:
    """Settings that are the same for all cells of a run."""

    folder: Path
    seconds: float = 60.0
    warm_up_s: float = 8.0
    delay: Delay = REGION
    processes: bool = False  # slots of streams, instead of threads of a process
    rate: float = 10_000.0
    log_records: int = 100_000
    small_files: int = 400
    rows: int = 1_000_000  # of each of two large files of JSON lines; Parquet has four times as many
    kills: int = 3
    table_commits: int = 300  # of Iceberg
    megabytes: float = 10.0  # of Parquet per second, if file sizes are measured
    table_seconds: float = 0.0  # the longest that they may take; 0: half a second each
    calls: int = 200  # of each kind, if the processor time of a request is measured
    tree: Path | None = None  # a checkout whose runtime is measured, instead of this checkout's
    tree_name: str = "now"


@dataclass
class Place:
    """A fresh folder or S3 endpoint for a job's checkpoints and rows."""

    url: str
    proxy: SlowProxy | None = None
    emulator: EmulatedS3 | None = None

    def requests(self, since: float, until: float = float("inf")) -> list[Request]:
        return self.proxy.requests(since, until) if self.proxy is not None else []

    def cpu_s(self) -> dict[str, float]:
        """Processor time of the servers; they share the machine's cores with the job."""
        servers = {"emulator": self.emulator, "proxy": self.proxy}
        return {name: cpu_of(server.pids) for name, server in servers.items() if server is not None}


@contextlib.contextmanager
def place(settings: Settings, delay: Delay | None) -> Iterator[Place]:
    """`delay`: of S3; None: a folder."""
    if delay is None:
        folder = settings.folder / "folder" / uuid.uuid4().hex
        folder.mkdir(parents=True)
        yield Place(str(folder.resolve()))
        return
    emulator = EmulatedS3()
    try:
        emulator.start()
        with slow_s3(delay, emulator) as proxy:
            yield Place(proxy.url, proxy, emulator)
    finally:
        emulator.close()


def stream_order(settings: Settings, url: str, sink: str, interval_s: float, slots: int) -> Order:
    return Order(
        store=f"{url}/ck",
        sink=sink,
        target=f"{url}/out",
        interval_s=interval_s,
        rate=settings.rate,
        slots=slots,
        processes=settings.processes,
        warm_up_s=settings.warm_up_s,
        seconds=settings.seconds,
        sink_options={"commit_every": 0} if sink in ("delta", "iceberg") else {},
    )


def with_fields(order: Order, **changed: object) -> Order:
    return msgspec.structs.replace(order, **changed)


def numbers(found: Mapping[tuple[str, str], int]) -> dict[str, float]:
    """Requests by name, from their counts by operation and kind of key."""
    return {f"{operation} {kind}".strip(): float(many) for (operation, kind), many in found.items()}


def result_of(
    settings: Settings,
    figures: dict[str, Value],
    requests: dict[str, float] | None = None,
    cores: dict[str, float] | None = None,
) -> CellResult:
    return CellResult(
        cell="",
        tree=settings.tree_name,
        at=time.strftime("%m-%d %H:%M"),
        figures=figures,
        requests=requests or {},
        cores=cores or {},
    )
