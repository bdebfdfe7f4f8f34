"""Resources of a slot process."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from barrier_runtime.coordinator.option_types import SlotOptions
from barrier_runtime.runtime.host.clock import SYSTEM_CLOCK, Clock
from barrier_runtime.runtime.host.process import PROCESS_HEAP
from barrier_runtime.runtime.host.workers import WorkerPool
from barrier_runtime.runtime.network.channels import LocalOutput
from barrier_runtime.runtime.network.flow_control import MAX_WINDOW_BYTES
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.plan import Thresholds
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.paths import Paths


@dataclass
class SlotResources:
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
    options: SlotOptions
    new_uuid: Callable[[], str]
    thresholds: Thresholds = field(
        default_factory=Thresholds
    )  # files of a snapshot that are packed, or inside the manifest
    transfers_at_once: int = 4
    clock: Clock = SYSTEM_CLOCK
    trim_memory: Callable[[bool], None] = PROCESS_HEAP.trim  # True: a generation was dropped since the last call
    window_bytes: int = MAX_WINDOW_BYTES
    local_output: type[LocalOutput] = LocalOutput
    starved_s: Callable[[], float] = lambda: 0.0  # see `host.watchdog`; called on the loop's thread
