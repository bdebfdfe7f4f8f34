"""What open pages cost: processor time of the coordinator, and latencies of the job, with and without them in turn.

    python -m benchmarks.pages                    two pairs of a minute each, 5 pages
    python -m benchmarks.pages --render           times and sizes of a large job's page and metrics, without Spark

A page here is what a browser does: the stream of ticks, and the page again whenever its number changes. It runs in a
process of its own. The job counts per key at `--rate` rows a second with a checkpoint every half second.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path

import msgspec

from barrier_runtime import CallableSink, Dataflow, count
from barrier_runtime.coordinator.page.render import explained, job_page
from barrier_runtime.coordinator.server.telemetry.prometheus import exposition
from barrier_runtime.coordinator.status.status import (
    ChainStatus,
    CheckpointsStatus,
    CheckpointStatus,
    CommitsStatus,
    JobStatus,
    SlotStatus,
)

_TICKS = os.sysconf("SC_CLK_TCK")
_WARM_UP_S = 12.0
_MINUTE_S = 62.0


def read_page(link: str) -> None:
    """Until the process is ended."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    opener.addheaders = [("Accept", "text/html")]
    opener.open(link).read()
    page = f"{link.partition('/login')[0]}/jobs/pages"
    opener.open(page).read()
    request = urllib.request.Request(f"{page}/events", headers={"Accept": "text/event-stream"})
    shown = None
    for line in opener.open(request):
        if line.startswith(b"data:"):
            number = json.loads(line[5:])["page"]
            if shown is not None and number != shown:
                opener.open(page).read()
            shown = number


def look(links: list[str]) -> None:
    for link in links:
        threading.Thread(target=read_page, args=(link,), daemon=True).start()
    threading.Event().wait()


@contextlib.contextmanager
def open_pages(links: list[str]) -> Iterator[None]:
    readers = multiprocessing.get_context("spawn").Process(target=look, args=(links,), daemon=True)
    readers.start()
    try:
        yield
    finally:
        readers.terminate()
        readers.join()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def run(pages: int, rate: int) -> None:
    flow = Dataflow("pages")
    rows = flow.rate("rows", rate, keys=1_000)
    rows.key_by("key").aggregate("counts", n=count()).sink("out", CallableSink(lambda batch: None))
    with tempfile.TemporaryDirectory(prefix="pages-") as folder:
        options = {"master": "local[2]", "parallelism": 2, "checkpoint_interval": 0.5, "checkpoints": folder}
        with flow.start(**options) as handle:  # type: ignore[arg-type]
            while not handle.status().checkpoints.completed:
                time.sleep(0.1)
            with open_pages([handle.page_link() for _ in range(pages)]):
                time.sleep(_WARM_UP_S)
                pid = handle.coordinator_pid
                assert pid is not None, "the coordinator is a child of this process"
                before, began = cpu_s(pid), time.monotonic()
                time.sleep(_MINUTE_S)
                share = (cpu_s(pid) - before) / (time.monotonic() - began)
                latencies = handle.status().latency_last_minute
            told = ", ".join(
                f"{name} p50 {each.p50:.2f} p99 {each.p99:.2f} ms" for name, each in sorted(latencies.items())
            )
            print(
                f"{pages} pages: coordinator {share:.2%} of a core; {told}; load {os.getloadavg()[0]:.1f}", flush=True
            )
            handle.stop("now")


def large(operators: int, slots: int) -> JobStatus:
    history = tuple(
        CheckpointStatus(checkpoint=n, token=1, outcome="complete", triggered_ms=1_000 * n, duration_ms=40, parts=slots)
        for n in range(1, 101)
    )
    return JobStatus(
        job="large",
        run_id="1",
        submitter="me",
        phase="running",
        outcome=None,
        reason="",
        error=None,
        fenced_by=None,
        token=1,
        generations=1,
        leader="a",
        parallelism=slots,
        max_parallelism=128,
        slots=tuple(
            SlotStatus(n, f"u{n}", n, "h", 0, "running", 5, {f"op-{o}.late_rows": 1.0 for o in range(operators)})
            for n in range(slots)
        ),
        missing_slots=(),
        checkpoints=CheckpointsStatus(completed=100, last_completed=history[-1], history=history),
        recoveries=(),
        watermark_ms=None,
        records=5,
        latency={},
        commits=CommitsStatus({}, ()),
        kill=(),
        options={},
        restored_checkpoint=0,
        at_ms=200_000,
        chains=tuple(
            ChainStatus(
                chain=n, operators=(f"op-{n}",), inputs=(n - 1,) if n else (), busy=0.1, backpressured=0.0, held=0.0
            )
            for n in range(operators)
        ),
    )


def render() -> None:
    for name, status, make in (
        ("page of 200 operators and 64 slots", large(200, 64), lambda status: job_page(explained(status, 200_000))),
        ("/metrics of 1,000 operators and 64 slots", large(1_000, 64), lambda status: exposition([status], 200_000)),
    ):
        times = []
        for _ in range(7):
            began = time.perf_counter()
            made = make(status)
            times.append(1_000 * (time.perf_counter() - began))
        size = len(made if isinstance(made, bytes) else made.encode())
        print(
            f"{name}: {sorted(times)[3]:.0f} ms (first {times[0]:.0f}), {size:,} bytes; load {os.getloadavg()[0]:.1f}"
        )
    told = msgspec.json.encode(large(200, 64))
    print(f"its status as JSON: {len(told):,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--pages", type=int, default=5)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=2)
    chosen = parser.parse_args()
    if chosen.render:
        render()
        return
    for _ in range(chosen.pairs):
        run(0, chosen.rate)
        run(chosen.pages, chosen.rate)


if __name__ == "__main__":
    main()
