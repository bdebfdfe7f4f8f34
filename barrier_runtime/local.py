"""A whole job in one process: no Spark, no JVM, no sockets. Same graph, operators and protocol objects as on a cluster.

Every slot is a `Slot` on one event loop; control messages and channels are function calls. For tests, debugging and
small jobs; start-up is well under a second. Checkpoints go where `checkpoints=` says, else to a folder that is removed
at the end.
"""

import asyncio
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from barrier_runtime.compile import compile_flow
from barrier_runtime.graph import JobGraph
from barrier_runtime.job_result import JobResult, raise_unless_ended_well
from barrier_runtime.options import JobOptions, StorageOfRun, job_spec
from barrier_runtime.slot.channels import InputChannel, LocalOutput, OutputChannel
from barrier_runtime.slot.data_plane import Broken, ChannelId
from barrier_runtime.slot.execution import SlotResources
from barrier_runtime.slot.slot import Slot, SlotIdentity
from barrier_runtime.slot.workers import Workers
from barrier_runtime.sources.staging import stage_sources, unstage_sources
from coordinator.job_runner import JobRunner
from coordinator.messages import JobSpec, Peer, Register, Shutdown, ToCoordinator, ToSlot
from coordinator.status import JobStatus
from state.local_copies import LocalCopies
from state.object_store import ObjectStore
from state.open_store import open_store
from state.paths import Paths
from state.rocksdb_kv import SlotMemory
from state.store_probe import probe_conditional_put

if TYPE_CHECKING:
    from barrier_runtime.dataflow import Dataflow

_LEAVE_S = 10.0  # how long open files of operators are waited for at the end


class LocalMesh:
    """All channels between the slots of one process, by identity."""

    def __init__(self) -> None:
        self._channels: dict[ChannelId, asyncio.Future[InputChannel]] = {}

    def offer(self, channel: ChannelId, target: InputChannel) -> None:
        future = self._future(channel)
        if not future.done():
            future.set_result(target)

    async def find(self, channel: ChannelId) -> InputChannel:
        return await asyncio.shield(self._future(channel))

    def _future(self, channel: ChannelId) -> "asyncio.Future[InputChannel]":
        if channel not in self._channels:
            self._channels[channel] = asyncio.get_running_loop().create_future()
        return self._channels[channel]

    def forget_before(self, token: int) -> None:
        self._channels = {key: value for key, value in self._channels.items() if key.token >= token}


class LocalDataPlane:
    """`DataPlane` of one slot in a `LocalMesh`: connected is what was offered and found."""

    def __init__(self, mesh: LocalMesh) -> None:
        self._mesh = mesh

    async def listen(self) -> tuple[str, int]:
        return "local", 0

    def expect(self, token: int, channels: dict[ChannelId, InputChannel], broken: Broken) -> None:
        self._mesh.forget_before(token)
        for channel, target in channels.items():
            self._mesh.offer(channel, target)

    async def connect(self, peer: Peer, channel: ChannelId, wake_writer: Callable[[], None]) -> OutputChannel:
        return LocalOutput(await self._mesh.find(channel), wake_writer)

    async def all_connected(self) -> None:
        """Nothing to wait for: a writer that is not there yet has sent nothing yet."""

    def disconnect(self) -> None:
        """Channels of a dropped generation are unreachable: their identities carry its token."""

    def close(self) -> None:
        """Nothing is open."""


class _Link:
    """Both ends of a control connection inside one loop: delivery in order, in later turns of the loop."""

    def __init__(self, runner: JobRunner, loop: asyncio.AbstractEventLoop) -> None:
        self._runner = runner
        self._loop = loop
        self.slot: Slot | None = None

    @property
    def last_contact(self) -> float:
        return time.monotonic()

    # the coordinator's end (`SlotLink`)
    def close(self) -> None:
        """The job ends; the slot leaves by Shutdown."""

    # both ends send; the type of the message says to whom
    def send(self, message: ToCoordinator | ToSlot) -> None:
        if isinstance(message, Register):
            self._loop.call_soon(self._runner.slot_connected, self, message)
        elif isinstance(message, ToCoordinator):
            self._loop.call_soon(self._runner.slot_message, self, message)
        else:
            assert self.slot is not None
            self._loop.call_soon(self.slot.handle, message)


def run_local(flow: "Dataflow", **keywords: object) -> JobResult:
    """Run `flow` in this process until it ends. Takes the options of `Dataflow.run` that make sense without Spark.

    Raises what `Dataflow.run` raises. Ctrl-C ends it.
    """
    options = JobOptions.from_keywords(keywords)
    graph = compile_flow(flow, options.parallelism, options.max_parallelism, mode=options.mode)
    spec = job_spec(graph, options)
    with StorageOfRun(options) as storage_url:
        store = open_store(storage_url)
        if options.checkpoints is not None:
            probe_conditional_put(store, f"{spec.job}/probe")
        if stage_sources(graph, storage_url, fresh=options.restore == "none"):
            graph = compile_flow(flow, options.parallelism, options.max_parallelism, mode=options.mode)
        status = _run_to_its_end(run_graph(graph, spec, store, options))
        if status.outcome == "finished":
            unstage_sources(graph, storage_url)
    raise_unless_ended_well(status)
    return JobResult(status)


def _run_to_its_end(main: Coroutine[Any, Any, JobStatus]) -> JobStatus:
    """On a loop of its own; in another thread where this one has a loop already, as in a notebook."""
    if not _in_a_loop():
        return asyncio.run(main)
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[JobStatus]]] = Future()

    async def announced() -> JobStatus:
        task = asyncio.create_task(main)
        started.set_result((asyncio.get_running_loop(), task))
        return await task

    with ThreadPoolExecutor(1, thread_name_prefix="barrier-run-local") as pool:
        ended = pool.submit(asyncio.run, announced())
        loop, task = started.result()
        try:
            return ended.result()
        except BaseException:  # Ctrl-C reaches this thread, not the one with the job
            if not ended.done():
                loop.call_soon_threadsafe(task.cancel)
            raise


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def make_runner(spec: JobSpec, store: ObjectStore) -> JobRunner:
    return JobRunner(spec, store, leader=uuid.uuid4().hex, host=socket.gethostname())


async def run_graph(
    graph: JobGraph, spec: JobSpec, store: ObjectStore, options: JobOptions, runner: JobRunner | None = None
) -> JobStatus:
    """Run coordinator and slots on this loop until the job ended; its last status. `runner`: of a caller who follows or
    stops the job; it is run here."""
    loop = asyncio.get_running_loop()
    runner = runner or make_runner(spec, store)
    running = loop.create_task(runner.run())
    directory = Path(tempfile.mkdtemp(prefix="barrier-runtime-local-"))
    workers = Workers(loop)
    mesh = LocalMesh()
    slots: list[Slot] = []
    try:
        for index in range(graph.parallelism):
            link = _Link(runner, loop)
            slot = _slot(graph, spec, index, directory, workers, LocalDataPlane(mesh), store, options)
            slot.link, link.slot = link, slot
            slots.append(slot)
            slot.connected()
        await running
        await asyncio.gather(*(slot.left for slot in slots))
        return runner.status()
    finally:
        running.cancel()
        for slot in slots:
            slot.handle(Shutdown("cancelled", "the program ends"))  # nothing new to a slot that has left
        await asyncio.wait([running, *(loop.create_task(slot.closed()) for slot in slots)], timeout=_LEAVE_S)
        # What is still being written would come into folders that are just being removed, and stay there.
        await asyncio.wait([loop.create_task(runner.quiet())], timeout=_LEAVE_S)
        await asyncio.to_thread(workers.drain)  # a chain may be opening still, and would make its folder again
        shutil.rmtree(directory, ignore_errors=True)


def _slot(
    graph: JobGraph,
    spec: JobSpec,
    index: int,
    directory: Path,
    workers: Workers,
    plane: LocalDataPlane,
    store: ObjectStore,
    options: JobOptions,
) -> Slot:
    slot_uuid = uuid.uuid4().hex
    resources = SlotResources(
        loop=asyncio.get_running_loop(),
        workers=workers,
        store=store,
        make_store=open_store,
        paths=Paths(graph.name),
        slot=index,
        uuid=slot_uuid,
        local_dir=directory / f"{index}-{slot_uuid}",
        copies=LocalCopies(),
        memory=SlotMemory(options.state.memory_bytes),
        settings=options.state,
        new_uuid=lambda: uuid.uuid4().hex,
    )
    identity = SlotIdentity(index, slot_uuid, os.getpid(), socket.gethostname(), index, "local", 0)
    return Slot(graph, spec.checkpoints.mode, identity, resources, plane)
