"""Cost of open pages: processor time of the coordinator and latencies of the job.

    python -m benchmarks.pages                    one run, 5 pages opened and closed in turn, 60 times
    python -m benchmarks.pages --pairs 16 --keep build/pages.jsonl    the same in several runs
    python -m benchmarks.pages --render           times and sizes of a large job's page and metrics, without Spark

A page acts like a browser: a page reads the stream of ticks, and the page again on each new page number. A process of
lower priority plays all browsers, which would be on other machines; the process also runs while the pages are closed.
If others use the machine, `chrt -r 10 python -m benchmarks.pages` gives all processes except that one priority over the
others. The job counts per key at `--rate` rows per second with a checkpoint every half second. Runs differ from each
other by more than an open page costs. So open and closed are blocks of a single run, in the order closed, open, open,
closed, and each two neighbours are compared. The program prints the median of the ratios with the 95 % interval
(`report.intervals`).
"""

import argparse
import contextlib
import itertools
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.cookiejar import CookieJar
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from barrier_runtime import Dataflow, count
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
from benchmarks.measuring_sink import MeasuringSink
from benchmarks.paced_source import PacedSource
from benchmarks.report.intervals import of_differences
from benchmarks.stamps import Stamps, read_stamps

_WARM_UP_S = 15.0
_LEFT_OUT_S = 2.0  # at the beginning of a block: pages are opening, or have not noticed their end
_PERCENTILES = (50.0, 90.0, 99.0, 99.9)


def read_page(link: str, shown: Event, read: "Synchronized[int]") -> None:
    """Reads the page while `shown` is set, until the process is ended; `read` counts ticks and pages."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    opener.addheaders = [("Accept", "text/html")]
    opener.open(link).read()
    page = f"{link.partition('/login')[0]}/jobs/pages"
    while shown.wait():
        opener.open(page).read()
        request = urllib.request.Request(f"{page}/events", headers={"Accept": "text/event-stream"})
        number = None
        with opener.open(request) as stream:
            for line in stream:
                if not shown.is_set():
                    break
                if line.startswith(b"data:"):
                    with read.get_lock():
                        read.value += 1
                    newest = json.loads(line[5:])["page"]
                    if number is not None and newest != number:
                        opener.open(page).read()
                    number = newest


def look(links: list[str], shown: Event, read: "Synchronized[int]") -> None:
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, 5)
    for link in links:
        threading.Thread(target=read_page, args=(link, shown, read), daemon=True).start()
    threading.Event().wait()


@contextlib.contextmanager
def pages(links: list[str]) -> Iterator[Event]:
    """An event; the pages are open while the event is set."""
    spawned = multiprocessing.get_context("spawn")
    shown, read = spawned.Event(), spawned.Value("q", 0)
    readers = spawned.Process(target=look, args=(links, shown, read), daemon=True)
    readers.start()
    try:
        yield shown
        print(f"{read.value:,} ticks were read")
    finally:
        readers.terminate()
        readers.join()


def cpu_s(pid: int) -> float:
    """Processor time of all live threads."""
    found = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in found) / 1e9


@dataclass(frozen=True)
class Block:
    open: bool
    began_ns: int
    ended_ns: int
    share: float  # of a core, of the coordinator


def measured(pid: int, shown: Event, pairs: int, block_s: float) -> list[Block]:
    found = []
    for opened in itertools.islice(itertools.cycle((False, True, True, False)), 2 * pairs):
        (shown.set if opened else shown.clear)()
        time.sleep(_LEFT_OUT_S)
        used_s, began_ns = cpu_s(pid), time.time_ns()
        time.sleep(block_s)
        ended_ns = time.time_ns()
        found.append(Block(opened, began_ns, ended_ns, (cpu_s(pid) - used_s) / (ended_ns - began_ns) * 1e9))
    return found


Pair: TypeAlias = dict[str, tuple[float, float]]  # figure -> (closed, open): "share" of a core, and ms by percentile


def compared(blocks: Sequence[Block], stamps: Stamps) -> list[str]:
    """A line per figure. Blocks come in pairs: open and closed."""
    return lines(pairs_of(blocks, stamps))


def pairs_of(blocks: Sequence[Block], stamps: Stamps) -> list[Pair]:
    found = []
    for at in starts(blocks):
        pair = blocks[at : at + 2]
        latencies = [stamps.due_in(each.began_ns, each.ended_ns).latency_ns / 1e6 for each in pair]
        figures = {"share": by_state(pair, [each.share for each in pair])}
        for percentile in _PERCENTILES:
            of_pair = [float(np.percentile(each, percentile)) for each in latencies]
            figures[f"p{percentile:g}"] = by_state(pair, of_pair)
        found.append(figures)
    return found


def lines(pairs: Sequence[Pair]) -> list[str]:
    shares = [each["share"] for each in pairs]
    more = [opened - closed for closed, opened in shares]
    closed, opened = (statistics.median(each) for each in zip(*shares, strict=True))
    found = [f"coordinator, % of a core: closed {closed:.2%}, open {opened:.2%}; difference {told(more, '.2%')}"]
    for percentile in _PERCENTILES:
        of_pairs = [each[f"p{percentile:g}"] for each in pairs]
        closed, opened = (statistics.median(each) for each in zip(*of_pairs, strict=True))
        differences = [math.log(opened / closed) for closed, opened in of_pairs]
        medians = f"closed {closed:.2f}, open {opened:.2f} (medians of blocks)"
        found.append(f"processed p{percentile:g}, ms: {medians}; ratio {told(differences, '.3f', math.exp)}")
    return found


def kept(file: Path, pairs: Sequence[Pair]) -> list[Pair]:
    """Pairs of earlier runs and these; from now on `file` has all of them, a line each."""
    with file.open("ab") as out:
        out.writelines(msgspec.json.encode(each) + b"\n" for each in pairs)
    return [_PAIR.decode(line) for line in file.read_bytes().splitlines()]


_PAIR = msgspec.json.Decoder(Pair)


def starts(blocks: Sequence[Block]) -> range:
    return range(0, len(blocks), 2)


def by_state(pair: Sequence[Block], figures: Sequence[float]) -> tuple[float, float]:
    """(closed, open)"""
    return (figures[1], figures[0]) if pair[0].open else (figures[0], figures[1])


def told(differences: Sequence[float], form: str, shown: Callable[[float], float] = float) -> str:
    middle, interval = of_differences(differences)
    within = "" if interval is None else f" [{shown(interval[0]):{form}}, {shown(interval[1]):{form}}]"
    return f"{shown(middle):{form}}{within}"


def run(number: int, rate: int, pairs: int, block_s: float, keep: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="pages-") as folder:
        stamps = Path(folder, "stamps")
        flow = Dataflow("pages")
        rows = flow.source("rows", PacedSource(rate, 1_000))
        counts = rows.select(["key", "emitted"]).key_by("key").aggregate("counts", n=count())
        counts.sink("out", MeasuringSink(str(stamps), column="emitted"))
        options = {"master": "local[2]", "parallelism": 2, "checkpoint_interval": 0.5}
        with flow.start(checkpoints=f"{folder}/checkpoints", **options) as handle:  # type: ignore[arg-type]
            while not handle.status().checkpoints.completed:
                time.sleep(0.1)
            pid = handle.coordinator_pid
            assert pid is not None, "the coordinator is a child of this process"
            with pages([handle.page_link() for _ in range(number)]) as shown:
                shown.set()
                time.sleep(_WARM_UP_S)
                print(f"{number} pages, {rate:,} rows/s, {pairs} pairs of {block_s:g} s; load {load()}", flush=True)
                blocks = measured(pid, shown, pairs, block_s)
            handle.stop()
            handle.wait()
        found = pairs_of(blocks, read_stamps(stamps))
        if keep is not None:
            found = kept(keep, found)
            print(f"{len(found)} pairs of all runs")
        print("\n".join(lines(found)))
        print(f"load {load()}")


def load() -> str:
    return " ".join(f"{each:.1f}" for each in os.getloadavg())


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--pages", type=int, default=5)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--block", type=float, default=5.0, help="seconds that are measured of each half of a pair")
    parser.add_argument("--keep", type=Path, help="add the pairs to this file, and tell what all in it say")
    chosen = parser.parse_args()
    if chosen.render:
        render()
        return
    run(chosen.pages, chosen.rate, chosen.pairs, chosen.block, chosen.keep)


if __name__ == "__main__":
    main()
