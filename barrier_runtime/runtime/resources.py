"""What a slot process has for as long as it lives: stores, threads, memory, clock. Each generation of it uses them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from barrier_runtime.runtime.host.clock import SYSTEM_CLOCK, Clock
from barrier_runtime.runtime.host.heap import PROCESS_HEAP
from barrier_runtime.runtime.host.workers import WorkerPool
from barrier_runtime.runtime.network.channels import LocalOutput
from barrier_runtime.runtime.network.flow_control import MAX_WINDOW_BYTES
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.plan import Thresholds
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.paths import Paths


@dataclass(frozen=True)
class SlotOptions:
    """What the run's options say of the work inside a slot: how keyed state is kept (bytes), how long rows may wait."""

    backend: str = "rocksdb"  # or "memory"
    memory_bytes: int = 256 * 1024 * 1024  # RocksDB block cache and write buffers of the whole slot together
    cache_bytes: int = 64 * 1024 * 1024  # decoded values per operator subtask
    transfers_at_once: int = 4  # files of one snapshot on their way to or from the object store
    thresholds: Thresholds = field(
        default_factory=Thresholds
    )  # which files of a snapshot are packed, or travel inside the manifest
    watched: bool = False  # refuse values that were changed in place and not stored
    latency_target_s: float = 0.001  # most that rows of a source wait for others
    max_drift_ms: int | None = None  # most that a split's event time is ahead of the one furthest behind


@dataclass
class SlotResources:
    """What outlives a generation inside one slot process."""

    loop: asyncio.AbstractEventLoop
    workers: WorkerPool
    store: ObjectStore
    make_store: Callable[[str], ObjectStore]
    paths: Paths
    slot: int
    uuid: str
    local_dir: Path
    copies: LocalCopies
    memory: SlotMemory
    settings: SlotOptions
    new_uuid: Callable[[], str]
    clock: Clock = SYSTEM_CLOCK
    trim_memory: Callable[[bool], None] = PROCESS_HEAP.trim  # True: a generation was dropped since it was called last
    window_bytes: int = MAX_WINDOW_BYTES  # most that is in flight on one channel
    local_output: type[LocalOutput] = LocalOutput  # of channels that stay inside the slot
    starved_s: Callable[[], float] = lambda: 0.0  # see `host.starved`; the loop's thread asks
