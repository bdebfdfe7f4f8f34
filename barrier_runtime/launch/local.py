"""Runs a whole job in one process, without Spark, JVM and sockets: for tests, debugging, small jobs.

Graph, operators and protocol objects are those of a cluster; control messages and channels are function calls on one
event loop. With `wire=True`, for tests, rows and messages are passed as bytes, under the rules of a cluster.
"""

import asyncio
import os
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.memory.batch_function import arrow_table
from barrier_runtime.connectors.memory.callable import CallableSink
from barrier_runtime.connectors.source import RedeliveringSource
from barrier_runtime.coordinator.job.status_view import program_wanted
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.messages import JobSpec, Shutdown
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.graph.logical import Input, Plan, SourceNode, StepNode
from barrier_runtime.launch.local_links import LocalDataPlane, LocalLink, LocalMesh, WireOutput
from barrier_runtime.launch.local_page import with_page
from barrier_runtime.launch.options import JobOptions, StorageOfRun
from barrier_runtime.launch.outcome import JobResult, interruption_told, raise_unless_ended_well
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.runtime.host.clock import SYSTEM_CLOCK, Clock
from barrier_runtime.runtime.host.inspection import OWN_LOG
from barrier_runtime.runtime.host.watchdog import starved_s
from barrier_runtime.runtime.host.workers import Workers
from barrier_runtime.runtime.network.channels import LocalOutput
from barrier_runtime.runtime.resources import SlotResources
from barrier_runtime.runtime.sinks.operator import SinkOperator
from barrier_runtime.runtime.slot import Slot, SlotIdentity
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.scratch import scratch_folder
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths

T = TypeVar("T")

wire_by_default = False  # set by tests
SIGTERM_S = 8.0  # containers are killed ten seconds after the request to end
_NEWS_WITHIN_S = 3.0
_SIGNALS_S = 1.0
_SHOWN_S = 1.0
_LEAVE_S = 10.0
_NO_FILE = "a job in one process cannot load a file anew beside the modules that it uses: call handle.replace(flow)"


def run_local(plan: Plan, options: JobOptions, *, wire: bool | None = None) -> JobResult:
    """Runs `plan` in this process until the job ends. Raises the errors of `Dataflow.run`.

    Ctrl-C ends the job, SIGTERM the program; both remove temporary folders.
    """
    slots: list[Slot] = []

    async def run(graph: JobGraph, spec: JobSpec, store: ObjectStore, options: JobOptions) -> JobStatus:
        runner = make_runner(spec, store)
        job = partial(run_graph, graph, spec, store, options, runner, wire, slots)
        return await with_page(job, runner, store, ui=options.ui)

    with Termination() as termination:
        return _run(PreparedJob(plan, options), options, lambda *job: termination.watched(run(*job)), slots)


def run_until_terminated(
    plan: Plan, options: JobOptions, show: Callable[[JobStatus], None]
) -> tuple[JobResult | None, bool]:
    """`run_local` for commands: SIGTERM stops the job with a last checkpoint within 8 seconds.
    For the main thread.

    Returns the result (None after the 8 seconds) and whether the signal came.
    """
    told = _Terminator(show)
    try:
        return _run(PreparedJob(plan, options), options, told.run_graph, ()), told.came
    except asyncio.CancelledError:
        return None, True


def _run(
    job: PreparedJob,
    options: JobOptions,
    run: Callable[[JobGraph, JobSpec, ObjectStore, JobOptions], Coroutine[Any, Any, JobStatus]],
    slots: Sequence[Slot],
) -> JobResult:
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
    job: PreparedJob,
    options: JobOptions,
    run: Callable[[JobGraph, JobSpec, ObjectStore, JobOptions], Coroutine[Any, Any, JobStatus]],
) -> JobResult:
    return _run(job, options, run, ())


class _Terminator:
    def __init__(self, show: Callable[[JobStatus], None]) -> None:
        self.came = False
        self._show = show

    async def run_graph(self, graph: JobGraph, spec: JobSpec, store: ObjectStore, options: JobOptions) -> JobStatus:
        loop = asyncio.get_running_loop()
        runner = make_runner(spec, store)
        job = partial(run_graph, graph, spec, store, options, runner)
        running = asyncio.ensure_future(with_page(job, runner, store, ui=options.ui))
        showing = loop.create_task(self._follow(runner))

        def terminate() -> None:
            if self.came:
                running.cancel()
            self.came = True
            runner.stop("checkpoint")
            loop.call_later(SIGTERM_S, running.cancel)

        loop.add_signal_handler(signal.SIGTERM, terminate)
        try:
            return await running
        finally:
            showing.cancel()
            loop.remove_signal_handler(signal.SIGTERM)

    async def _follow(self, runner: JobRunner) -> None:
        while True:
            await runner.changed(_SHOWN_S)
            self._show(runner.status())


class Termination:
    """Handles SIGTERM if the program does not: cancels the job and removes folders."""

    def __init__(self) -> None:
        self._ours = False
        self._came = False
        self._cleaning = False

    def __enter__(self) -> "Termination":
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
        """Cancels `job` in the handler: a handler that raises could raise in any task."""
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
    """Runs `main` on a new loop; in another thread if this thread has a running loop, as in a notebook."""
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
            while not ended.done():  # a signal in another thread does not end a wait for a lock
                wait([ended], timeout=_SIGNALS_S)
            return ended.result()
        except BaseException:  # Ctrl-C reaches this thread, not that of the job
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
    spec = msgspec.structs.replace(spec, carrier="processes")
    return JobRunner(spec, store, leader=uuid.uuid4().hex, host=socket.gethostname())


def raised_in(slots: Sequence[Slot]) -> list[BaseException]:
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
    """Runs the job on this loop until the end; returns the last status.

    `slots` receives the slots as they start. `programs`: by name in `JobSpec`, possible replacements of the first.
    """
    pa.array([0])  # the first conversion imports pandas: not in a running loop
    wire = wire_by_default if wire is None else wire
    output = WireOutput if wire else LocalOutput
    loop = asyncio.get_running_loop()
    runner = runner or make_runner(spec, store)
    running = loop.create_task(runner.run())
    scratch = ExitStack()
    scratch.enter_context(OWN_LOG.kept())
    directory = scratch.enter_context(scratch_folder("barrier-runtime-local-"))
    workers = Workers(loop)
    mesh = LocalMesh()
    slots = [] if slots is None else slots

    def start(index: int, program: str = "") -> None:
        link = LocalLink(runner, loop, wire)
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
            slot.handle(Shutdown("cancelled", "the program ends"))
        await asyncio.wait(
            [running, standing_by, *(loop.create_task(slot.closed()) for slot in slots)], timeout=_LEAVE_S
        )
        # An unfinished write would create files while folders are removed.
        await asyncio.wait([loop.create_task(runner.quiet())], timeout=_LEAVE_S)
        await asyncio.to_thread(
            workers.drain, _LEAVE_S
        )  # a chain may still be opening, and would create the folder again
        scratch.close()


async def _start_standbys(runner: JobRunner, start: Callable[[int, str], None]) -> None:
    """Once per request."""
    asked = ""
    while True:
        wanted = runner.standbys
        if wanted is not None and wanted.request != asked:
            asked = wanted.request
            for index in range(wanted.first, wanted.last + 1):
                start(index, wanted.program)
        program = program_wanted(runner.facts)
        if program is not None:
            runner.program_loaded(program.id, None, _NO_FILE)
        await runner.changed(_NEWS_WITHIN_S)


def _leave_the_heap(dropped: bool) -> None:
    """Trims nothing: the heap of this process is the user's."""


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


_SINK = "first-rows"
_LONGEST_S = 86_400


def first_rows(plan: Plan, stream: Input, rows: int, within_s: float | None = None) -> pa.Table:
    """At most `rows` rows that `stream` produces within `within_s`.

    The steps before run in this process with one subtask, without sinks and checkpoints.
    """
    if not isinstance(rows, int) or rows < 1:
        raise InvalidJob(f"show: {rows!r} rows: give a whole number from 1 on")
    if within_s is not None and not 0 < within_s <= _LONGEST_S:
        raise InvalidJob(f"preview: within={within_s!r}: give seconds above 0, at most {_LONGEST_S}")
    found: list[pa.RecordBatch] = []
    enough: list[Callable[[], object]] = []

    def take(batch: pa.RecordBatch) -> None:
        found.append(batch)
        if sum(each.num_rows for each in found) >= rows:
            for stop in enough:
                stop()

    async def until_enough(graph: JobGraph, spec: JobSpec, store: ObjectStore, options: JobOptions) -> JobStatus:
        runner = make_runner(spec, store)
        loop = asyncio.get_running_loop()
        enough.append(partial(loop.call_soon_threadsafe, runner.stop, "now"))
        if within_s is not None:
            loop.call_later(within_s, runner.stop, "now")
        return await run_graph(graph, spec, store, options, runner)

    options = JobOptions.for_local_run({"parallelism": 1})
    run_prepared(PreparedJob(_leading_to(plan, stream, CallableSink(take)), options), options, until_enough)
    return pa.Table.from_batches(found).slice(0, rows) if found else pa.table({})


def _leading_to(plan: Plan, stream: Input, sink: CallableSink) -> Plan:
    wanted, todo = set(), [stream.node]
    while todo:
        number = todo.pop()
        node = plan.nodes[number]
        if number not in wanted and isinstance(node, StepNode):
            todo += [each.node for each in node.inputs]
        wanted.add(number)
    part = Plan(plan.name)
    places: dict[int, int] = {}
    for number in sorted(wanted):
        node = plan.nodes[number]
        if isinstance(node, SourceNode) and isinstance(node.source, RedeliveringSource):
            raise InvalidJob(
                f"show: source {node.name!r} has messages that are gone once they were read: show a stream of a file, "
                "or write to a sink"
            )
        if isinstance(node, StepNode):
            node = replace(node, inputs=tuple(replace(each, node=places[each.node]) for each in node.inputs))
        places[number] = part.add(node)
    make = partial(SinkOperator, make_sink=lambda: sink)
    ends_in = (replace(stream, node=places[stream.node]),)
    part.add(StepNode(_SINK, "sink", ends_in, make, None, stateful=True, is_sink=True, guarantee=sink.guarantee))
    return part
