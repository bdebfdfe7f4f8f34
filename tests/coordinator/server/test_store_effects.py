"""Store effects on their threads: compactions beside appends, and processes that stall between two calls."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from unittest.mock import patch

import pytest
from coordinator_world import Coordinator, keys_of, spec, started

from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.job.effects import Append, Compact, CopySavepoint
from barrier_runtime.coordinator.job.events import AppendResult, Deleted, Event, SavepointNotCopied
from barrier_runtime.coordinator.log import records
from barrier_runtime.coordinator.server.store_effects import StoreEffects, StoreThreads
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectInfo, PutOutcome
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import sha256_hex
from tests.waiting import PATIENCE_S, eventually

PATHS = Paths("flights")


@asynccontextmanager
async def effects_on(store: MemoryStore) -> AsyncIterator[tuple[StoreEffects, StoreThreads]]:
    async def no_history() -> tuple[bytes | None, str]:
        return None, ""

    threads = StoreThreads("flights")
    try:
        yield StoreEffects("flights", store, threads, no_history, lambda said: None, lambda: 0, time.sleep), threads
    finally:
        threads.close()
        await threads.quiet()


class SlowStore(MemoryStore):
    """Store that lists the log once `let_go` is set, and calls `before_get` before each GET."""

    def __init__(self) -> None:
        super().__init__("slow")
        self.lists = 0
        self.let_go = threading.Event()
        self.before_get: Callable[[], object] = lambda: None

    def list(self, prefix: str) -> Iterable[ObjectInfo]:
        if prefix == PATHS.log_prefix:
            self.lists += 1
            assert self.let_go.wait(PATIENCE_S)
        return super().list(prefix)

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        self.before_get()
        return super().get(key, offset, size)


def long_log(store: MemoryStore, last: int) -> None:
    """Fills the log with COMPLETE records up to position `last`."""
    coordinator, *slots = started(store)
    coordinator.checkpoint(*slots)
    for position in range(3, last + 1):
        store.put(PATHS.log_record(position), store.get(PATHS.log_record(2)))


def positions(store: MemoryStore) -> list[int]:
    return [at for key in keys_of(store) if (at := PATHS.log_position(key)) is not None]


def compact(base: int) -> Compact:
    first = MemoryStore()
    started(first)
    return Compact(base, frozenset(), sha256_hex(first.get(PATHS.log_record(1))))


async def patiently(awaited: Awaitable[object]) -> object:
    return await asyncio.wait_for(awaited, PATIENCE_S)


def test_append_does_not_wait_for_a_long_compaction_of_which_there_is_one() -> None:
    async def story() -> None:
        async with effects_on(store) as (effects, _):
            compactions = [asyncio.create_task(effects.carry_out(compact(300 + n))) for n in range(6)]
            try:
                await eventually(lambda: store.lists > 0)
                answer = await patiently(effects.carry_out(Append(401, b"x", 1)))
                assert isinstance(answer, AppendResult)
                assert answer.outcome is PutOutcome.CREATED
            finally:
                store.let_go.set()
            assert await patiently(asyncio.gather(*compactions)) == [Deleted("")] * 6
            assert store.lists == 1
            assert min(set(positions(store)) - {2**n for n in range(9)}) == 300
            assert await patiently(effects.carry_out(compact(350))) == Deleted("")
            assert min(set(positions(store)) - {2**n for n in range(9)}) == 350

    store = SlowStore()
    long_log(store, 400)
    asyncio.run(story())


def test_closed_threads_end_a_compaction_before_its_next_records() -> None:
    async def story() -> None:
        async with effects_on(store) as (effects, threads):
            store.let_go.set()
            store.before_get = threads.close
            assert await patiently(effects.carry_out(compact(900))) == Deleted("")
            store.before_get = lambda: None

    store = SlowStore()
    long_log(store, 1_000)
    asyncio.run(story())
    assert 1_000 - 128 <= len(positions(store)) < 1_000


def test_closed_threads_end_a_copy_of_a_savepoint_before_its_next_files() -> None:
    """A terminated daemon, or a program that ends, waits for its threads."""
    store, names = SlowStore(), " ".join(f"f{number}" for number in range(40))
    coordinator, *slots = started(store)
    asked = SavepointRequest("asked", "memory://interrupted-savepoint")
    coordinator.savepoint(asked)
    for slot in slots:
        for name in names.split():
            slot.upload(name)
        slot.ack(1, files=names)
    coordinator.settle()
    for slot in slots:
        slot.commit(1)
    copying = coordinator.run_until(CopySavepoint)
    assert isinstance(copying, CopySavepoint)

    async def story() -> Event:
        async with effects_on(store) as (effects, threads):
            store.before_get = threads.close
            return await effects.carry_out(copying)

    answer = asyncio.run(story())
    assert isinstance(answer, SavepointNotCopied)
    assert "the process ends" in answer.error
    assert len(keys_of(open_store(asked.url))) < 40


@pytest.mark.slow
def test_fence_in_a_gap_is_answered_with_the_proof_and_the_start_reads_again() -> None:
    """A start reads the log and stalls before FENCE, while other runs write the position and compact the log."""

    async def put(effect: Append) -> Event:
        async with effects_on(store) as (effects, _):
            return await effects.carry_out(effect)

    store = MemoryStore()
    with patch.object(records, "MILESTONE_STEP", 8):
        coordinator, *slots = started(store)
        coordinator.checkpoint(*slots)
        late = Coordinator(store, spec(run_id="run-9"), leader="leader-n", now_ms=5_000_000).begin()
        late.run_until(Append)
        effect = late.todo.popleft()
        assert isinstance(effect, Append)
        coordinator.checkpoint(*slots)
        later = Coordinator(store, spec(run_id="run-2"), leader="leader-c", now_ms=9_000_000).begin()
        slots = [later.slot(0, "p"), later.slot(1, "q")]
        later.run_with(*slots)
        for _ in range(40):
            later.checkpoint(*slots)
            for slot in slots:
                slot.commit(slot.highest)
        assert effect.position not in positions(store)
        end = max(positions(store))
        answer = asyncio.run(put(effect))
        assert isinstance(answer, AppendResult)
        assert answer.outcome is PutOutcome.CREATED
        assert answer.overtaken is not None
        late.post(answer)
        late.settle()
        assert late.protocol.token == end + 1
