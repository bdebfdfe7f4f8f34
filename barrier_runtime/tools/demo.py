"""The command `demo`: a live flow with a page, without Spark or Java.

At the end the demo checks that each written window exists once.
"""

import contextlib
import json
import signal
import tempfile
import time
import webbrowser
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from barrier_runtime.api.dataflow import Dataflow
from barrier_runtime.connectors.files.sink.commit_log import committed_files
from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.coordinator.client.client import UnknownJob
from barrier_runtime.launch.job_handle import JobHandle
from barrier_runtime.launch.outcome import JobResult
from barrier_runtime.operators.aggregation.functions import count, sum_
from barrier_runtime.operators.state.value import ValueState
from barrier_runtime.operators.windows.assigners import Tumbling
from barrier_runtime.state.errors import Unavailable

SHOPS = 12


class Record:
    best = ValueState(int, default=0)

    def process(self, shop: int, second: dict[str, Any], ctx: Any) -> Any:
        if second["revenue"] > self.best.value:
            self.best.value = second["revenue"]
            yield {"shop": shop, "at": second["window_start"], "revenue": second["revenue"]}


def demo_flow(output: str, rows_per_second: float, rows: int | None) -> Dataflow:
    """Writes `seconds` and `records` below the folder `output`. Without `rows` the flow is endless."""
    flow = Dataflow("demo")
    orders = flow.rate("orders", rows_per_second, rows, keys=SHOPS, splits=2, event_time="intended_at")
    seconds = (
        orders.select({"shop": "key", "at": "intended_at", "amount": "value * 7919 % 97"})
        .key_by("shop")
        .window("seconds", Tumbling(timedelta(seconds=1)), event_time="at")
        .aggregate(orders=count(), revenue=sum_("amount"))
    )
    seconds.sink("seconds-out", JsonlSink(f"{output}/seconds"))
    seconds.key_by("shop").process("records", Record).sink("records-out", JsonlSink(f"{output}/records"))
    return flow


_SLOTS = 2
_INTERVAL_S = 1.0
_LOOK_S = 0.05


def demo(
    rows_per_second: float, rows: int | None, *, browser: bool, say: Callable[[str], None] = print
) -> JobResult | None:
    """Runs until `rows` orders are read (None: until a signal). Raises the error of a failed job."""
    with _Signals() as signals, tempfile.TemporaryDirectory(prefix="barrier-runtime-demo-") as folder:
        flow = demo_flow(f"{folder}/out", rows_per_second, rows)
        with flow.start_local(
            processes=_SLOTS, checkpoints=f"{folder}/checkpoints", checkpoint_interval=_INTERVAL_S
        ) as job:
            say(f"its output: {folder}/out")
            if browser:
                webbrowser.open(job.page_link())
            _follow(job, signals, say)
            result = job.wait()
        say(counted(f"{folder}/out/seconds"))
        return result


def _follow(job: JobHandle, signals: "_Signals", say: Callable[[str], None]) -> None:
    invited = stopping = False
    while not job.done:
        with contextlib.suppress(Unavailable, UnknownJob):  # the coordinator is being restarted
            if not invited and len(slots := job.status().slots) == _SLOTS:
                say(f"try it: kill -9 {slots[0].pid}   (a slot; or {job.coordinator_pid}, the coordinator)")
                say("Ctrl-C takes a last checkpoint and ends it; Rescale on the page starts and ends slots")
                invited = True
            if signals.received and not stopping:
                job.stop(wait=False)
                say("stopping, with a last checkpoint")
                stopping = True
        time.sleep(_LOOK_S)


def counted(folder: str) -> str:
    if not list(Path(folder).glob("*.jsonl")):
        return "written: nothing, it ended before its first window did"
    found: Counter[tuple[int, str]] = Counter()
    orders = 0
    for url in committed_files(folder):
        for line in Path(url.removeprefix("file://")).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found[row["shop"], row["window_start"]] += 1
            orders += row["orders"]
    twice = sum(1 for times in found.values() if times > 1)
    return f"written: {orders:,} orders in {len(found):,} windows, of which {twice} are there twice"


class _Signals:
    """Ctrl-C or SIGTERM stops with a last checkpoint, a second signal at once."""

    def __init__(self) -> None:
        self.received = 0

    def _receive(self, *signal_and_frame: object) -> None:
        self.received += 1
        if self.received > 1:
            raise KeyboardInterrupt

    def __enter__(self) -> "_Signals":
        self._before = [(number, signal.signal(number, self._receive)) for number in (signal.SIGINT, signal.SIGTERM)]
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)
