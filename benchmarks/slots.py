"""A job's slots at a rate, without Spark: processor time by process and thread, and latency.

    python -m benchmarks.slots --rate 10000 --seconds 10
    python -m benchmarks.slots --rate 10000 --nice -15        (as root: on a machine that others use, too)
    python -m benchmarks.slots --rate 100000 --host 10.0.0.7 [--plaintext]      (an address of this host: encrypted)

Each slot is a process. This process replaces Spark, as in `barrier-runtime demo`; coordinator, control links, data
connections, RocksDB and checkpoints are as in any job. Reported are processor time (user and system) of each process
and the slot's busiest threads from /proc, wake-ups of threads, and latencies of the measuring sink. With --nice the
measured processes have priority over others, so that two commits can be compared in turn; but latencies still include
waits for other processes.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from barrier_runtime import Dataflow
from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.spark.task import SlotSettings, run_slot
from barrier_runtime.state.store.open import open_store
from benchmarks.idle import Thread, below, threads_of
from benchmarks.machine import describe
from benchmarks.measuring_sink import CountingSink, MeasuringSink
from benchmarks.paced_source import PacedSource
from benchmarks.workloads import workload

SLOTS = 2
_LEASE_S = 10.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_SHOWN = 0.002  # threads that use less of a core are not listed


class Order(msgspec.Struct, frozen=True):
    """Argument of a slot's process."""

    workload: str
    rate: float
    keys: int
    latency_target_ms: float
    interval_s: float
    folder: str
    host: str = "127.0.0.1"
    plaintext: bool = False
    counted: bool = False  # `CountingSink` instead of the measuring sink
    slot: int = 0
    run_id: str = ""
    secret: str = ""
    control: tuple[str, int] = ("", 0)


def _prepared(order: Order) -> tuple[PreparedJob, JobOptions]:
    given: dict[str, Any] = {"run_id": order.run_id} if order.run_id else {}
    options = JobOptions.from_keywords(
        {
            "parallelism": SLOTS,
            "checkpoints": f"{order.folder}/checkpoints",
            "checkpoint_interval": order.interval_s,
            "coordinator_lease": _LEASE_S,
            "latency_target": order.latency_target_ms / 1e3,
            "insecure_network_ok": order.plaintext,
            **given,
        }
    )
    flow, result = workload(order.workload).flow(
        lambda flow: flow.source("events", PacedSource(order.rate, order.keys, order.keys), event_time="at")
    )
    assert isinstance(flow, Dataflow)
    sink = CountingSink if order.counted else MeasuringSink
    result.sink("out", sink(f"{order.folder}/rows", column="emitted"))
    return PreparedJob(flow.plan, options), options


def _slot(order: Order) -> None:
    job, options = _prepared(order)
    settings = SlotSettings(
        graph=job.graph,
        options=options.for_slots(),
        secret=bytes.fromhex(order.secret),
        control_addresses=(order.control,),
        storage_url=f"{order.folder}/checkpoints",
    )
    run_slot(order.slot, order.slot + 1, settings)


@contextlib.contextmanager
def running(order: Order, places: Sequence[Sequence[str]] = ((),) * SLOTS) -> Iterator[tuple[list[int], list[int]]]:
    """(Slots' pids, the coordinator's) of a job whose sink has rows. `places`: command before each slot's own."""
    job, _ = _prepared(order)
    job.prove(open_store(f"{order.folder}/checkpoints"))
    with EmbeddedCoordinator(f"{order.folder}/checkpoints", host=order.host) as coordinator:
        reply = coordinator.submit(job.spec)
        slots = []
        for slot, place in enumerate(places):
            one = msgspec.structs.replace(
                order,
                slot=slot,
                run_id=job.spec.run_id,
                secret=reply.secret,
                control=(reply.control_host, reply.control_port),
            )
            command = [sys.executable, "-m", "benchmarks.slots", "--slot", msgspec.json.encode(one).decode()]
            slots.append(subprocess.Popen([*place, *command]))
        try:
            while not list(Path(order.folder).glob("rows/rows-*.npy")):
                time.sleep(0.1)
                if any(slot.poll() is not None for slot in slots):
                    raise RuntimeError("a slot ended")
            yield [slot.pid for slot in slots], below(coordinator.pid)
        finally:
            for process in slots:
                process.kill()
                process.wait()


def measure(order: Order, warm_up_s: float, seconds: float, attach: str) -> None:
    with running(order) as (slots, others):
        time.sleep(warm_up_s)
        pids = [*slots, *others]
        before, began, began_ns = _sample(pids), time.monotonic(), time.time_ns()
        if attach:
            subprocess.run(attach.format(*pids, seconds=seconds), shell=True, check=False)
        else:
            time.sleep(seconds)
        after, took = _sample(pids), time.monotonic() - began
        ended_ns = time.time_ns()
        time.sleep(1.5 * order.interval_s)
    names = [*(f"slot {slot}" for slot in range(SLOTS)), "coordinator"]
    _tell(dict(zip(pids, names, strict=False)), before, after, took)
    _tell_latencies(Path(order.folder, "rows"), began_ns, ended_ns, took)


def _sample(pids: Sequence[int]) -> dict[int, tuple[Thread, float]]:
    """Threads, each with the thread's seconds in the kernel."""
    found = {}
    for pid in pids:
        for tid, thread in threads_of(pid).items():
            stat = Path(f"/proc/{pid}/task/{tid}/stat").read_text().rpartition(")")[2].split()
            found[tid] = thread, int(stat[12]) * _TICK_S
    return found


def _tell(
    names: dict[int, str], before: dict[int, tuple[Thread, float]], after: dict[int, tuple[Thread, float]], took: float
) -> None:
    total = 0.0
    for pid, name in names.items():
        shares = []
        for tid, (thread, system_s) in after.items():
            if thread.process == pid and tid in before:
                base, base_system_s = before[tid]
                used = (thread.cpu_s - base.cpu_s) / took
                shares.append(
                    (used, (system_s - base_system_s) / took, (thread.woken - base.woken) / took, thread.name)
                )
        used = sum(share[0] for share in shares)
        total += used
        print(f"{name}: {used:.3f} cores, {sum(share[2] for share in shares):,.0f} wake-ups/s")
        for share, system, woken, thread_name in sorted(shares, reverse=True):
            if share >= _SHOWN:
                print(f"    {share:.3f} ({system:.3f} in the kernel), woken {woken:,.0f}/s: {thread_name}")
    print(f"all: {total:.3f} cores")


def _tell_latencies(folder: Path, began_ns: int, ended_ns: int, took: float) -> None:
    noted = np.concatenate([np.load(file) for file in folder.glob("rows-*.npy")], axis=1)
    intended, arrived = noted[:, (noted[0] >= began_ns) & (noted[0] < ended_ns)]
    late_ms = (arrived - intended) / 1e6
    turns = len(np.unique(arrived))
    p50, p90, p99, p999, highest = np.percentile(late_ms, [50, 90, 99, 99.9, 100])
    per_batch = len(late_ms) / max(1, turns)
    print(f"{len(late_ms) / took:,.0f} rows/s, {per_batch:.1f} per sink batch, {turns / took:,.0f} batches/s")
    print(f"latency ms p50 {p50:.2f}, p90 {p90:.2f}, p99 {p99:.2f}, p99.9 {p999:.2f}, max {highest:.1f}")


def go_before_others(nice: int, module: str = "benchmarks.slots") -> None:
    """Linux shares cores between sessions first, and within a session between processes."""
    if os.getsid(0) != os.getpid():
        os.execvp("setsid", ["setsid", "--wait", sys.executable, "-m", module, *sys.argv[1:]])
    os.nice(nice)
    Path("/proc/self/autogroup").write_text(str(nice))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="keyed-count")
    parser.add_argument("--rate", type=float, default=10_000.0, help="rows per second of all slots")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--latency-target", type=float, default=1.0, help="ms")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between checkpoints")
    parser.add_argument("--warm-up", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--nice", type=int, default=0, help="of all processes measured")
    parser.add_argument("--attach", default="", help="a command that measures; {0}, {1}: slots' pids, {seconds}")
    parser.add_argument("--host", default="127.0.0.1", help="address of this host for coordinator and slots")
    parser.add_argument("--plaintext", action="store_true", help="with --host: rows between slots are not encrypted")
    parser.add_argument("--slot", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.slot:
        _slot(msgspec.json.decode(chosen.slot, type=Order))
        return
    if chosen.nice:
        go_before_others(chosen.nice)
    folder = tempfile.mkdtemp(prefix="barrier-slots-")
    order = Order(
        chosen.workload,
        chosen.rate,
        chosen.keys,
        chosen.latency_target,
        chosen.interval,
        folder,
        chosen.host,
        chosen.plaintext,
    )
    try:
        measure(order, chosen.warm_up, chosen.seconds, chosen.attach)
        print(describe())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
