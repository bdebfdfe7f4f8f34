"""Leases of a daemon in the object store, judged by `lease`.

Errors of the store are logged and cost the lease, never the job.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from barrier_runtime.coordinator.log.lease import (
    Holder,
    Judgement,
    Lease,
    LeaseKeeper,
    LeaseState,
    LeaseWatch,
    encode_lease,
)
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.state.errors import BarrierRuntimeError, Unavailable
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.store.paths import Paths

log = logging.getLogger("coordinator.leases")

_RENEWALS = 3  # per term
_SOON_S = 0.1  # interval of checks until a run leads and needs the first lease
_STORE_THREADS = 2

Result = TypeVar("Result")


class LedElsewhere(Unavailable):
    def __init__(self, lease: Lease) -> None:
        super().__init__(
            f"job {lease.job} is led by daemon {lease.leader} at {lease.http}: ask there, or again when its lease of "
            f"{lease.lease_ms / 1000:g} s is over"
        )
        self.url = lease.http
        self.lease = lease


class Led(Protocol):
    @property
    def spec(self) -> JobSpec: ...

    @property
    def lead_position(self) -> int | None: ...

    @property
    def connected_slots(self) -> int: ...


class Leases:
    def __init__(self, store: ObjectStore, holder: Holder) -> None:
        self._store = store
        self._holder = holder
        self._pool = ThreadPoolExecutor(_STORE_THREADS, thread_name_prefix="leases")
        self._watches: dict[str, LeaseWatch] = {}
        self._keepers: dict[tuple[str, str], LeaseKeeper] = {}
        self._trouble: dict[str, str] = {}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def displaced(self, job: str, run_id: str) -> bool:
        """Another daemon held this run's lease at the last read."""
        keeper = self._keepers.get((job, run_id))
        return keeper is not None and keeper.displaced

    async def judge(self, job: str) -> Judgement:
        key = Paths(job).lease
        asked_ms = _now_ms()
        try:
            data = await self._in_thread(lambda: get_or_none(self._store, key))
        except OSError as error:
            raise Unavailable(f"{self._store.url}/{key} can't be read: {error}: try again") from error
        judgement = self._watch(job).judge(data, asked_ms, _now_ms())
        self._tell(job, judgement.trouble)
        return judgement

    def may_take(self, job: str, run_id: str, found: Judgement) -> bool:
        return self._watch(job).may_take(found, run_id, _now_ms())

    def _watch(self, job: str) -> LeaseWatch:
        return self._watches.setdefault(job, LeaseWatch(Paths(job).lease, self._holder))

    async def claim(self, job: str, run_id: str, position: int, found: Judgement) -> Judgement:
        """Writes a free lease and judges the result: of two concurrent claims, the later claim wins.

        A rare double claim costs a generation; the log decides.
        """
        keeper = self._keeper(job, run_id)
        lease = keeper.renewal(found, position, 1, _now_ms())
        if lease is not None:
            await self._put(lease)
        return await self.judge(job)

    async def keep(self, led: Led, claimed: int | None, ended: asyncio.Event) -> None:
        """Renews the lease until `ended`, then releases the lease.

        `claimed`: position in the lease until the run leads by a record of its own.
        """
        job, run_id = led.spec.job, led.spec.run_id
        keeper = self._keeper(job, run_id)
        position = claimed
        while not ended.is_set():
            position = position if led.lead_position is None else led.lead_position
            if position is not None:
                await self._guarded(job, self._renew(keeper, job, position, led.connected_slots))
            pause_s = _SOON_S if led.lead_position is None else self._holder.lease_ms / _RENEWALS / 1000
            try:
                await asyncio.wait_for(ended.wait(), min(pause_s, self._holder.lease_ms / _RENEWALS / 1000))
            except asyncio.TimeoutError:
                continue
        if position is not None:
            await self._guarded(job, self._release(keeper, job, position))
        if self._keepers.get((job, run_id)) is keeper:
            del self._keepers[job, run_id]

    async def _renew(self, keeper: LeaseKeeper, job: str, position: int, slots: int) -> None:
        before = keeper.displaced
        found = await self.judge(job)
        lease = keeper.renewal(found, position, slots, _now_ms())
        if keeper.displaced and not before and found.lease is not None:
            log.warning("job %s: daemon %s has taken the lease; only the log ends us", job, found.lease.leader)
        if lease is not None:
            await self._put(lease)

    async def _release(self, keeper: LeaseKeeper, job: str, position: int) -> None:
        lease = keeper.release(await self.judge(job), position)
        if lease is not None:
            await self._put(lease)

    async def _guarded(self, job: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (BarrierRuntimeError, OSError) as error:
            self._tell(job, f"the lease could not be renewed: {error}")
        else:
            self._tell(job, "")

    def _tell(self, job: str, trouble: str) -> None:
        if trouble and self._trouble.get(job) != trouble:
            log.warning("job %s: %s", job, trouble)
        self._trouble[job] = trouble

    def _keeper(self, job: str, run_id: str) -> LeaseKeeper:
        return self._keepers.setdefault((job, run_id), LeaseKeeper(self._holder, job, run_id))

    async def _put(self, lease: Lease) -> None:
        await self._in_thread(lambda: self._store.put(Paths(lease.job).lease, encode_lease(lease)))

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)


def held(judgement: Judgement) -> Lease | None:
    return judgement.lease if judgement.state is LeaseState.HELD else None


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
