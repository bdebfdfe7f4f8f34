"""A whole job in one process as on a cluster: real slots, coordinator, sockets, frames, caps and messages; no Spark.

`run_local` passes messages and batches as objects, so it applies no size, codec or frame rule of a cluster.

    async with TcpJob(flow, folder, parallelism=2, checkpoint_interval=0.2) as job:
        await job.until(lambda: job.completed >= 3)
        job.break_slot(1)                              # as a retryable failure of an operator
        await job.until(lambda: job.generations > 1)
"""

import asyncio
import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from barrier_runtime.api.dataflow import Dataflow
from barrier_runtime.coordinator.server.control import ControlServer
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.handshake import Policy, across_hosts
from barrier_runtime.coordinator.wire.messages import Shutdown, SlotClaims
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.launch.options import JobOptions, job_spec
from barrier_runtime.runtime.host.workers import Workers
from barrier_runtime.runtime.network.control_link import TcpControlLink
from barrier_runtime.runtime.network.tcp import TcpDataPlane
from barrier_runtime.runtime.resources import SlotResources
from barrier_runtime.runtime.slot import Slot, SlotIdentity
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.tls import PeerTls

Via = Callable[[str, int], Awaitable[tuple[str, int]]]


async def directly(host: str, port: int) -> tuple[str, int]:
    return host, port


class TcpJob:
    """A running job. `storage`: URL or folder of the checkpoints. `wrap`: wraps the store for coordinator and slots.
    `via`: returns the address of a relay that leads to an address. `options`: options of `Dataflow.run`. Leaving the
    context ends slots, sockets, threads and local folders.
    """

    runner: JobRunner

    def __init__(
        self,
        flow: Dataflow,
        storage: str | Path,
        *,
        wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store,
        encrypts: Policy = across_hosts,
        via: Via = directly,
        tls: PeerTls | None = None,
        **options: Any,
    ) -> None:
        self._encrypts = encrypts
        self._via = via
        self._tls = tls
        self.options = JobOptions.from_keywords(options)
        self.graph = compile_plan(
            flow.plan, self.options.parallelism, self.options.max_parallelism, mode=self.options.mode
        )
        self.spec = job_spec(self.graph, self.options)
        self.store = wrap(open_store(str(storage)))
        self.paths = Paths(self.spec.job)
        self.slots: list[Slot] = []

    async def __aenter__(self) -> "TcpJob":
        loop = asyncio.get_running_loop()
        self._workers = Workers(loop)
        self._folder = Path(tempfile.mkdtemp(prefix="tcp-job-"))
        self._directory = JobDirectory(self.store, daemon_key=b"k" * 32, leader=uuid.uuid4().hex, host="h")
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        listening.setblocking(False)
        self._server = ControlServer(self._directory, listening, encrypts=self._encrypts, tls=self._tls)
        self._tasks: list[asyncio.Task[None]] = []
        self._planes: list[TcpDataPlane] = []
        self._links: list[TcpControlLink] = []
        await self._server.start()
        self._coordinator = await self._via(*self._server.address)
        self.runner = await self._directory.submit(self.spec)
        for index in range(self.graph.parallelism):
            await self._start_slot(index, loop)
        return self

    async def _start_slot(self, index: int, loop: asyncio.AbstractEventLoop) -> None:
        job, run_id = self.spec.job, self.spec.run_id
        secret, slot_uuid = self._directory.secret(job, run_id), uuid.uuid4().hex
        plane = TcpDataPlane(secret, job, run_id, encrypts=self._encrypts, tls=self._tls)
        host, port = await self._via(*await plane.listen())
        resources = SlotResources(
            loop=loop,
            workers=self._workers,
            store=self.store,
            make_store=open_store,
            paths=self.paths,
            slot=index,
            uuid=slot_uuid,
            local_dir=self._folder / slot_uuid,
            copies=LocalCopies(),
            memory=SlotMemory(self.options.state_memory_mb << 20),
            options=self.options,
            new_uuid=lambda: uuid.uuid4().hex,
            trim_memory=lambda dropped: None,  # the heap is shared by all tests
        )
        identity = SlotIdentity(index, slot_uuid, os.getpid(), "h", index, host, port)
        slot = Slot(self.graph, self.spec.checkpoints.mode, identity, resources, plane)
        claims = msgspec.msgpack.encode(SlotClaims(index, slot_uuid))
        link = TcpControlLink((self._coordinator,), secret, job, run_id, claims, slot.connected, slot.handle)
        link.encrypts = self._encrypts
        link.tls = self._tls
        slot.link = link
        self.slots.append(slot)
        self._planes.append(plane)
        self._links.append(link)
        self._tasks.append(loop.create_task(link.run()))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for slot in self.slots:
            slot.handle(Shutdown("cancelled", "the test ends"))
        for link in self._links:
            link.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.close()
        await self._directory.close()
        await asyncio.gather(*(slot.closed() for slot in self.slots))
        for plane in self._planes:
            plane.close()
        await asyncio.to_thread(self._workers.drain, 30.0)
        await self.runner.quiet()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ---- looking

    @property
    def status(self) -> JobStatus:
        return self.runner.status()

    @property
    def completed(self) -> int:
        """Id of the newest completed checkpoint of this run."""
        last = self.status.checkpoints.last_completed
        return 0 if last is None else last.checkpoint

    @property
    def generations(self) -> int:
        return self.status.generations

    async def until(self, condition: Callable[[], object], seconds: float = 240.0) -> None:
        """Waits for `condition`; fails with the job's status if the job ends first or the time is over."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not condition():
            if self.runner.outcome is not None:
                raise AssertionError(f"the job ended: {self.runner.outcome}: {self.status.error or self.status.reason}")
            waited = loop.time() - began
            if waited > seconds:
                status = self.status
                raise AssertionError(f"waited in vain: {status.condition} {status.condition_reason}")
            await asyncio.sleep(min(max(0.01, waited / 20), 0.05))  # a status takes a good part of a millisecond

    async def outcome(self, seconds: float = 240.0) -> JobStatus:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self.runner.outcome is None:
            assert loop.time() < end, f"not ended in {seconds:g} s: {self.status.condition_reason}"
            await asyncio.sleep(0.01)
        return self.status

    # ---- doing

    def break_slot(self, index: int) -> None:
        """Raises a retryable failure in a subtask of the slot."""
        execution = self.slots[index]._execution
        assert execution is not None, "the slot has nothing that could fail"
        execution._fail(None, "x", OSError("the test breaks it"))
