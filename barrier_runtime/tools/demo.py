"""The command `demo`: a live flow with a page, from the package alone, without Spark or Java.

This process takes the part of Spark: a process per slot, restarted after a death. At the end the demo counts the
written windows: each must exist once.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from barrier_runtime.api.dataflow import Dataflow
from barrier_runtime.connectors.files.sink.commit_log import committed_files
from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.coordinator.client.client import UnknownJob
from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator, how_it_ended
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.outcome import JobResult, raise_unless_ended_well
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.operators.aggregation.functions import count, sum_
from barrier_runtime.operators.state.value import ValueState
from barrier_runtime.operators.windows.assigners import Tumbling
from barrier_runtime.spark import deaths
from barrier_runtime.spark.task import SlotSettings, run_slot
from barrier_runtime.state.errors import BarrierRuntimeError, Unavailable
from barrier_runtime.state.store.open import open_store

SHOPS = 12


class Record:
    """Best second of a shop so far."""

    best = ValueState(int, default=0)

    def process(self, shop: int, second: dict[str, Any], ctx: Any) -> Any:
        if second["revenue"] > self.best.value:
            self.best.value = second["revenue"]
            yield {"shop": shop, "at": second["window_start"], "revenue": second["revenue"]}


def demo_flow(output: str, rows_per_second: float, rows: int | None) -> Dataflow:
    """Writes `seconds` and `records` below the folder `output`; endless without `rows`."""
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
_INTERVAL_S = 1.0  # between checkpoints
_LEASE_S = 10.0
_LEAVE_S = 15.0  # for slots to leave
_LOOK_S = 1.0


class _SlotOrder(msgspec.Struct, frozen=True):
    slot: int
    attempt: int
    run_id: str
    secret: str
    control: tuple[str, int]
    folder: str
    rows_per_second: float
    rows: int | None
    died: dict[int, str] = {}  # of the previous process, if killed by a signal: pid -> "SIGKILL"


_ORDER = msgspec.json.Decoder(_SlotOrder)


def demo(
    rows_per_second: float, rows: int | None, *, browser: bool, say: Callable[[str], None] = print
) -> JobResult | None:
    """Runs until `rows` orders are read (None: until Ctrl-C or SIGTERM). Raises the error of a failed job."""
    with _Signals() as signals, tempfile.TemporaryDirectory(prefix="barrier-runtime-demo-") as folder:
        job, _ = _prepared(folder, rows_per_second, rows)
        job.prove(open_store(_checkpoints(folder)))
        with EmbeddedCoordinator(_checkpoints(folder)) as coordinator, _Slots() as slots:
            reply = coordinator.submit(job.spec)
            address = (reply.control_host, reply.control_port)
            orders = [
                _SlotOrder(slot, 0, job.spec.run_id, reply.secret, address, folder, rows_per_second, rows)
                for slot in range(_SLOTS)
            ]
            slots.start(orders)
            link = coordinator.client.page_link(job.spec.job)
            say(f"the page of the job: {link}")
            say(f"its output: {folder}/out")
            say(f"try it: kill -9 {slots.pids()[0]}   (a slot; or {coordinator.pid}, the coordinator)")
            say("Ctrl-C takes a last checkpoint and ends it")
            if browser:
                webbrowser.open(link)
            status = _follow(coordinator, job.spec, slots, signals, say)
            slots.leave()
        raise_unless_ended_well(status)
        say(counted(f"{folder}/out/seconds"))
        return JobResult(status)


def counted(folder: str) -> str:
    """Counts the orders and windows in the output folder, and windows that exist twice."""
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


def _prepared(
    folder: str, rows_per_second: float, rows: int | None, run_id: str = ""
) -> tuple[PreparedJob, JobOptions]:
    """Equal in this process and in the processes of slots."""
    given: dict[str, Any] = {"run_id": run_id} if run_id else {}
    options = JobOptions.from_keywords(
        {
            "parallelism": _SLOTS,
            "checkpoints": _checkpoints(folder),
            "checkpoint_interval": _INTERVAL_S,
            "coordinator_lease": _LEASE_S,
            **given,
        }
    )
    return PreparedJob(demo_flow(f"{folder}/out", rows_per_second, rows).plan, options), options


def _checkpoints(folder: str) -> str:
    return f"{folder}/checkpoints"


def _follow(
    coordinator: EmbeddedCoordinator,
    spec: JobSpec,
    slots: "_Slots",
    signals: "_Signals",
    say: Callable[[str], None],
) -> JobStatus:
    status: JobStatus | None = None
    stopping = False
    while status is None or status.outcome is None:
        with contextlib.suppress(Unavailable):  # the coordinator is being restarted
            coordinator.ensure_alive()
            try:
                if signals.received and not stopping:
                    coordinator.client.stop(spec.job, "checkpoint", spec.run_id)
                    say("stopping, with a last checkpoint")
                    stopping = True
                status = coordinator.client.next_status(spec.job, spec.run_id, status, _LOOK_S)
                for order in status.kill:
                    slots.kill(order.task_attempt)
            except UnknownJob:  # a restarted coordinator does not know the job yet
                coordinator.submit(spec)
        for line in slots.renewed():
            say(line)
        time.sleep(0.05)
    return status


class _Signals:
    """Ctrl-C or SIGTERM stops with a last checkpoint; a second signal interrupts."""

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


class _Slots:
    """Process per slot, like a task of Spark; killed when the context ends."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[_SlotOrder, subprocess.Popen[bytes]]] = {}
        self._attempts = 0

    def start(self, orders: list[_SlotOrder]) -> None:
        for order in orders:
            self._begin(order)

    def _begin(self, order: _SlotOrder) -> None:
        self._attempts += 1
        order = msgspec.structs.replace(order, attempt=self._attempts)
        command = [sys.executable, "-m", "barrier_runtime.tools.demo"]
        # Ctrl-C must reach this process only.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(order))
        process.stdin.close()
        self._running[order.slot] = (order, process)

    def pids(self) -> list[int]:
        return [process.pid for _, process in self._running.values()]

    def renewed(self) -> Iterator[str]:
        """A line for each process that died and was restarted."""
        for slot, (order, process) in list(self._running.items()):
            code = process.poll()
            if code:
                how = how_it_ended(code)
                died = {process.pid: how.removeprefix("died of ")} if code < 0 else {}
                self._begin(msgspec.structs.replace(order, died=died))
                pid = self._running[slot][1].pid
                yield f"slot {slot}, process {process.pid} {how} and was started again as process {pid}"

    def kill(self, attempt: int) -> None:
        for order, process in self._running.values():
            if order.attempt == attempt:
                process.kill()

    def leave(self) -> None:
        deadline = time.monotonic() + _LEAVE_S
        for _, process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> "_Slots":
        return self

    def __exit__(self, *exception: object) -> None:
        for _, process in self._running.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def _slot_main() -> int:
    """Runs a slot: `python -m barrier_runtime.tools.demo`, with the order on standard input."""
    order = _ORDER.decode(sys.stdin.buffer.read())
    job, options = _prepared(order.folder, order.rows_per_second, order.rows, order.run_id)
    settings = SlotSettings(
        graph=job.graph,
        options=options.for_slots(),
        secret=bytes.fromhex(order.secret),
        control_addresses=(order.control,),
        storage_url=_checkpoints(order.folder),
    )
    deaths.told(order.died)
    try:
        run_slot(order.slot, order.attempt, settings)
    except BarrierRuntimeError as error:
        print(f"slot {order.slot}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    os.environ.pop("SPARK_LOCAL_DIRS", None)
    sys.exit(_slot_main())
