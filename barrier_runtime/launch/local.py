"""A whole job in one process: no Spark, no JVM, no sockets. Same graph, operators and protocol objects as on a cluster.

Every slot is a `Slot` on one event loop; control messages and channels are function calls. For tests, debugging and
small jobs; no JVM has to start. Checkpoints go where `checkpoints=` says, else to a folder that is removed
at the end. With `wire=True`, for tests, rows and messages are handed over as bytes, with a cluster's rules and caps.
"""

import asyncio
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow as pa

from barrier_runtime.connectors.batch_function.caller import arrow_table
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.codec import decode_to_coordinator, decode_to_slot, encode
from barrier_runtime.coordinator.wire.messages import JobSpec, Peer, Register, Shutdown, ToCoordinator, ToSlot
from barrier_runtime.data.elements import Element
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.graph.logical import Plan
from barrier_runtime.launch.options import JobOptions, StorageOfRun
from barrier_runtime.launch.outcome import JobResult, interruption_told, raise_unless_ended_well
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.runtime.host.clock import SYSTEM_CLOCK, Clock
from barrier_runtime.runtime.host.watchdog import starved_s
from barrier_runtime.runtime.host.workers import Workers
from barrier_runtime.runtime.network.channels import InputChannel, LocalOutput, OutputChannel
from barrier_runtime.runtime.network.frames import FrameReader, FrameWriter
from barrier_runtime.runtime.network.tcp import Broken, ChannelId
from barrier_runtime.runtime.resources import SlotResources
from barrier_runtime.runtime.slot import Slot, SlotIdentity
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.scratch import scratch_folder
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths

T = TypeVar("T")

wire_by_default = False  # what `run_local` and `run_graph` do unless they are told; tests set it
_LAST_CHECKPOINT_S = 8.0  # containers are killed ten seconds after they were asked to end
_NEWS_WITHIN_S = 3.0
_SIGNALS_S = 1.0
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

    def __init__(self, mesh: LocalMesh, output: type[LocalOutput] = LocalOutput) -> None:
        self._mesh = mesh
        self._output = output

    async def listen(self) -> tuple[str, int]:
        return "local", 0

    def expect(self, token: int, channels: dict[ChannelId, InputChannel], broken: Broken) -> None:
        self._mesh.forget_before(token)
        for channel, target in channels.items():
            self._mesh.offer(channel, target)

    async def connect(self, peer: Peer, channel: ChannelId, wake_writer: Callable[[], None]) -> OutputChannel:
        return self._output(await self._mesh.find(channel), wake_writer)

    async def all_connected(self) -> None:
        """Nothing to wait for: a writer that is not there yet has sent nothing yet."""

    def disconnect(self) -> None:
        """Channels of a dropped generation are unreachable: their identities carry its token."""

    def close(self) -> None:
        """Nothing is open."""


class WireOutput(LocalOutput):
    """Rows and control elements as frames, as on a connection between two processes."""

    __slots__ = ("_reader", "_writer")

    def __init__(self, target: InputChannel, wake_writer: Callable[[], None]) -> None:
        super().__init__(target, wake_writer)
        self._writer, self._reader = FrameWriter(), FrameReader()

    def send(self, element: Element) -> None:
        for arrived, size in self._reader.feed(b"".join(self._writer.encode(element))):
            self._target.push(arrived, size)


class _Link:
    """Both ends of a control connection inside one loop: delivery in order, in later turns of the loop."""

    def __init__(self, runner: JobRunner, loop: asyncio.AbstractEventLoop, wire: bool) -> None:
        self._runner = runner
        self._wire = wire
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
        if self._wire:
            read = decode_to_coordinator if isinstance(message, ToCoordinator) else decode_to_slot
            message = read(encode(message))
        if isinstance(message, Register):
            self._loop.call_soon(self._runner.slot_connected, self, message)
        elif isinstance(message, ToCoordinator):
            self._loop.call_soon(self._runner.slot_message, self, message)
        else:
            assert self.slot is not None
            self._loop.call_soon(self.slot.handle, message)


def run_local(plan: Plan, options: JobOptions, *, wire: bool | None = None) -> JobResult:
    """Run `plan` in this process until it ends. `options`: of `JobOptions.for_local_run`. `wire`: for tests, see the
    module.

    Raises what `Dataflow.run` raises. Ctrl-C ends it, and SIGTERM ends the program, without what is temporary.
    """
    slots: list[Slot] = []
    with _Termination() as termination:
        run = partial(run_graph, wire=wire, slots=slots)
        return _run(plan, options, lambda *job: termination.watched(run(*job)), slots)


def run_until_terminated(plan: Plan, options: JobOptions) -> tuple[JobResult | None, bool]:
    """`run_local` of a command: SIGTERM stops the job with a last checkpoint, for which it has 8 seconds. Returns the
    result (None: the time was over) and whether the signal came. For the main thread."""
    told = _Terminator()
    try:
        return _run(plan, options, told.run_graph, ()), told.came
    except asyncio.CancelledError:
        return None, True


def _run(
    plan: Plan,
    options: JobOptions,
    run: Callable[[JobGraph, JobSpec, ObjectStore, JobOptions], Coroutine[Any, Any, JobStatus]],
    slots: Sequence[Slot],
) -> JobResult:
    job = PreparedJob(plan, options)
    with StorageOfRun(options) as storage_url:
        store = open_store(storage_url)
        if options.checkpoints is not None:
            job.prove(store)
            job.resolve_in_doubt(store)
            job.begin_with_savepoint(store)
        job.stage(storage_url)
        told = interruption_told(job.graph.name, goes_on=options.checkpoints is not None)
        with told, job.batch_functions(store, arrow_table) as functions:
            status = run_to_its_end(functions.watched(run(job.graph, job.spec, store, options)))
        if status.outcome == "finished":
            job.unstage(storage_url)
    raise_unless_ended_well(status, raised_in(slots))
    return JobResult(status)


def run_prepared(
    plan: Plan,
    options: JobOptions,
    run: Callable[[JobGraph, JobSpec, ObjectStore, JobOptions], Coroutine[Any, Any, JobStatus]],
) -> JobResult:
    """Run `plan` in this process by `run`, which may follow or stop it."""
    return _run(plan, options, run, ())


class _Terminator:
    def __init__(self) -> None:
        self.came = False

    async def run_graph(self, graph: JobGraph, spec: JobSpec, store: ObjectStore, options: JobOptions) -> JobStatus:
        loop = asyncio.get_running_loop()
        runner = make_runner(spec, store)
        running = loop.create_task(run_graph(graph, spec, store, options, runner))

        def terminate() -> None:
            if self.came:
                running.cancel()
            self.came = True
            runner.stop("checkpoint")
            loop.call_later(_LAST_CHECKPOINT_S, running.cancel)

        loop.add_signal_handler(signal.SIGTERM, terminate)
        try:
            return await running
        finally:
            loop.remove_signal_handler(signal.SIGTERM)


class _Termination:
    """SIGTERM to a program that does nothing about it itself: the job is cancelled and its folders are removed; then
    the program ends by that signal. A program's own handler is left alone."""

    def __init__(self) -> None:
        self._ours = False
        self._came = False
        self._cleaning = False

    def __enter__(self) -> "_Termination":
        if _in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._ours = True
            signal.signal(signal.SIGTERM, self._outside_the_loop)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if self._came:
                os.kill(os.getpid(), signal.SIGTERM)

    async def watched(self, job: Coroutine[Any, Any, JobStatus]) -> JobStatus:
        """A handler that raises would do so in any task, which might take it for an error of its own."""
        if not (self._ours and _in_main_thread()):
            return await job
        loop, running = asyncio.get_running_loop(), asyncio.current_task()
        assert running is not None, "a coroutine without its task"

        def terminate() -> None:
            if not self._came:
                self._came = True
                running.cancel()

        loop.add_signal_handler(signal.SIGTERM, terminate)
        try:
            return await job
        finally:
            self._cleaning = True
            loop.remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, self._outside_the_loop)

    def _outside_the_loop(self, number: int, frame: object) -> None:
        first, self._came = not self._came, True
        if first and not self._cleaning:
            raise SystemExit(128 + number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def run_to_its_end(main: Coroutine[Any, Any, T]) -> T:
    """On a loop of its own; in another thread where this one has a loop already, as in a notebook."""
    if not _in_a_loop():
        return asyncio.run(main)
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    async def announced() -> T:
        task = asyncio.create_task(main)
        started.set_result((asyncio.get_running_loop(), task))
        return await task

    with ThreadPoolExecutor(1, thread_name_prefix="barrier-run-local") as pool:
        ended = pool.submit(asyncio.run, announced())
        loop, task = started.result()
        try:
            while not ended.done():  # a signal that another thread got wakes nobody who waits for a lock
                wait([ended], timeout=_SIGNALS_S)
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


def raised_in(slots: Sequence[Slot]) -> list[BaseException]:
    """What each raised last, if it did."""
    return [slot.trouble for slot in slots if slot.trouble is not None]


async def run_graph(
    graph: JobGraph,
    spec: JobSpec,
    store: ObjectStore,
    options: JobOptions,
    runner: JobRunner | None = None,
    wire: bool | None = None,
    slots: list[Slot] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    programs: Mapping[str, JobGraph] = MappingProxyType({}),
) -> JobStatus:
    """Run coordinator and slots on this loop until the job ended; its last status. `runner`: of a caller who follows or
    stops the job; it is run here. `wire`: see the module; None: `wire_by_default`. `clock`: of the slots.
    `slots` gets them as they start, for the program that runs the job to look at. `programs`: by their names in
    `JobSpec`, those that may replace the one that the job begins with."""
    pa.array([0])  # at its first conversion pyarrow imports pandas, if it is there: not in the loop of a running slot
    wire = wire_by_default if wire is None else wire
    output = WireOutput if wire else LocalOutput
    loop = asyncio.get_running_loop()
    runner = runner or make_runner(spec, store)
    running = loop.create_task(runner.run())
    scratch = ExitStack()
    directory = scratch.enter_context(scratch_folder("barrier-runtime-local-"))
    workers = Workers(loop)
    mesh = LocalMesh()
    slots = [] if slots is None else slots

    def start(index: int, program: str = "") -> None:
        link = _Link(runner, loop, wire)
        own, plane = programs.get(program, graph), LocalDataPlane(mesh, output)
        slot = _slot(own, program, spec, index, len(slots), directory, workers, plane, store, options, output, clock)
        slot.link, link.slot = link, slot
        slots.append(slot)
        slot.connected()

    standing_by = loop.create_task(_start_standbys(runner, start))
    try:
        for index in range(graph.parallelism):
            start(index)
        await running
        await asyncio.gather(*(slot.left for slot in slots))
        return runner.status()
    finally:
        running.cancel()
        standing_by.cancel()
        for slot in slots:
            slot.handle(Shutdown("cancelled", "the program ends"))  # nothing new to a slot that has left
        await asyncio.wait(
            [running, standing_by, *(loop.create_task(slot.closed()) for slot in slots)], timeout=_LEAVE_S
        )
        # What is still being written would come into folders that are just being removed, and stay there.
        await asyncio.wait([loop.create_task(runner.quiet())], timeout=_LEAVE_S)
        await asyncio.to_thread(
            workers.drain, _LEAVE_S
        )  # a chain may be opening still, and would make its folder again
        scratch.close()


async def _start_standbys(runner: JobRunner, start: Callable[[int, str], None]) -> None:
    """What a driver does: start the slots that a rescale or a replace asks for, once for each request."""
    asked = ""
    while True:
        wanted = runner.standbys
        if wanted is not None and wanted.request != asked:
            asked = wanted.request
            for index in range(wanted.first, wanted.last + 1):
                start(index, wanted.program)
        await runner.changed(_NEWS_WITHIN_S)


def _leave_the_heap(dropped: bool) -> None:
    """In a slot of its own process start-up is frozen, and a dropped generation collected. Here the process is the
    user's program: what it has frozen stays so, and its collector frees the rest when it comes to it."""


def _slot(
    graph: JobGraph,
    program: str,
    spec: JobSpec,
    index: int,
    attempt: int,
    directory: Path,
    workers: Workers,
    plane: LocalDataPlane,
    store: ObjectStore,
    options: JobOptions,
    output: type[LocalOutput],
    clock: Clock,
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
        memory=SlotMemory(options.state_memory_mb << 20),
        options=options,
        new_uuid=lambda: uuid.uuid4().hex,
        trim_memory=_leave_the_heap,
        local_output=output,
        starved_s=starved_s,
        clock=clock,
    )
    identity = SlotIdentity(index, slot_uuid, os.getpid(), socket.gethostname(), attempt, "local", 0, program=program)
    return Slot(graph, spec.checkpoints.mode, identity, resources, plane)
