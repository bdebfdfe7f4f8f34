"""Contexts of operators."""

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from barrier_runtime.coordinator.wire.messages import Deploy
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.operators.base import CommitReport, OperatorContext, SplitPosition
from barrier_runtime.operators.metrics import MetricRegistry
from barrier_runtime.runtime.host.clock import GenerationTimers
from barrier_runtime.runtime.host.workers import WorkerExecutor, WorkerPool
from barrier_runtime.runtime.resources import SlotResources
from barrier_runtime.state.backend.keyed_backend import KeyedBackend, open_keyed_backend
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.snapshots.transfer import with_values


class GenerationExecutors:
    """Executors for snapshots and, unhurried, for work that may take for ever."""

    def __init__(self, workers: WorkerPool, on_error: Callable[[Exception], None]) -> None:
        self._workers = workers
        self._on_error = on_error
        self._all: list[WorkerExecutor] = []
        self._unhurried: dict[str, WorkerExecutor] = {}
        self._snapshots: dict[tuple[int, str], WorkerExecutor] = {}
        self._in_flight: dict[int, WorkerExecutor] = {}
        self._further: list[WorkerExecutor] = []

    def add_operator(self, chain: int, operator: str) -> tuple[WorkerExecutor, WorkerExecutor]:
        """Returns (unhurried executor, executor of snapshots)."""
        snapshots = self._snapshots[(chain, operator)] = self._new()
        unhurried = self._unhurried[operator] = self._new(unhurried=True)
        return unhurried, snapshots

    def add_further(self) -> WorkerExecutor:
        """Unhurried executor for parallel work, which nothing awaits."""
        executor = self._new(unhurried=True)
        self._further.append(executor)
        return executor

    def add_awaited(self) -> WorkerExecutor:
        """Executor for parallel work, awaited before the operator is closed."""
        return self._new()

    def add_in_flight(self, chain: int) -> None:
        self._in_flight[chain] = self._new()

    def of_snapshots(self, chain: int, operator: str) -> WorkerExecutor:
        return self._snapshots[(chain, operator)]

    def of_rows_in_flight(self, chain: int) -> WorkerExecutor:
        return self._in_flight[chain]

    def hanging(self, operator: str) -> WorkerExecutor | None:
        executor = self._unhurried.get(operator)
        return executor if executor is not None and executor.busy else None

    def retire(self) -> list[WorkerExecutor]:
        """Returns the busy executors that end soon."""
        unhurried = [*self._unhurried.values(), *self._further]
        busy = [executor for executor in self._all if executor.busy and executor not in unhurried]
        for executor in self._all:
            executor.retire()
        return busy

    def _new(self, unhurried: bool = False) -> WorkerExecutor:
        executor = self._workers.executor(self._on_error, unhurried)
        self._all.append(executor)
        return executor


class AtHand(Protocol):
    def replay_command(self, chain: int, operator: str, key: object = ...) -> str: ...
    def source_position(self, chain: int) -> str: ...
    def written(self, chain: int) -> Mapping[str, SplitPosition]: ...


class OperatorContexts:
    def __init__(
        self,
        graph: JobGraph,
        mode: str,
        deploy: Deploy,
        resources: SlotResources,
        executors: GenerationExecutors,
        metrics: MetricRegistry,
        report_commit: Callable[[str, CommitReport], None],
        later: GenerationTimers,
        wake: Callable[[], None],
        wake_from_thread: Callable[[], None],
        at_hand: AtHand,
    ) -> None:
        self._at_hand = at_hand
        self._graph = graph
        self._mode = mode
        self._token = deploy.token
        self._lineage = deploy.lineage
        self._log_sha256 = deploy.first_sha256
        self._settled = deploy.settled
        self._reopened = deploy.reopened
        self._res = resources
        self._executors = executors
        self._metrics = metrics
        self._report_commit = report_commit
        self._later = later
        self._wake = wake
        self._wake_from_thread = wake_from_thread

    def make(self, chain: int, operator: str, restored: tuple[OperatorSnapshot, ...]) -> OperatorContext:
        """Runs on a worker thread, because large values are read. `restored`: snapshots of all operators."""
        res, options = self._res, self._res.options
        of_operator = [each for each in restored if each.operator == operator]
        own = tuple(with_values(res.store, of_operator, res.transfers_at_once))
        directory = self._folder(operator)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

        def open_keyed() -> KeyedBackend:
            backend = open_keyed_backend(
                kind=options.state_backend,
                operator=operator,
                subtask=res.slot,
                parallelism=self._graph.parallelism,
                max_parallelism=self._graph.max_parallelism,
                restored=own,
                store=res.store,
                paths=res.paths,
                token=self._token,
                slot_uuid=res.uuid,
                directory=directory,
                copies=res.copies,
                memory=res.memory,
                cache_bytes=options.state_cache_mb << 20,
                new_uuid=res.new_uuid,
                transfers_at_once=res.transfers_at_once,
                thresholds=res.thresholds,
                watched=bool(options.check_state),
            )
            backend.snapshots.merge(res.clock.monotonic_s, self._later.call_when_settled)
            self._later.ends_before_move(lambda: backend.compacts)
            return backend

        executor, snapshot_executor = self._executors.add_operator(chain, operator)
        return OperatorContext(
            job=self._graph.name,
            token=self._token,
            operator=operator,
            subtask=res.slot,
            parallelism=self._graph.parallelism,
            max_parallelism=self._graph.max_parallelism,
            restored=own,
            open_keyed=open_keyed,
            executor=executor,
            snapshot_executor=snapshot_executor,
            metrics=self._metrics.group(operator),
            local_dir=directory,
            make_store=res.make_store,
            job_store=res.store,
            call_later=self._later.call_later,
            wake=self._wake,
            now_s=res.clock.monotonic_s,
            wall_ms=lambda: res.clock.wall_ns() // 1_000_000,
            new_id=res.new_uuid,
            lineage=self._lineage,
            log_sha256=self._log_sha256,
            exactly_once=self._mode == "exactly_once",
            at_most_once=self._mode == "at_most_once",
            follows_source=self._graph.chains[chain].source is not None,
            written=partial(self._at_hand.written, chain),
            settled=self._settled,
            reopened=self._reopened,
            report_commit=partial(self._report_commit, operator),
            wake_from_thread=self._wake_from_thread,
            new_executor=self._executors.add_further,
            new_awaited_executor=self._executors.add_awaited,
            replay=partial(self._at_hand.replay_command, chain, operator),
            position=partial(self._at_hand.source_position, chain),
            latency_target_s=options.latency_target,
        )

    def closing(self, operator: str, close: Callable[[], None]) -> Callable[[], None]:
        """Call that closes the operator and releases the folder, without references to the generation."""
        return partial(_closed, close, self._res.copies, self._folder(operator))

    def remove_folder(self, operator: str) -> None:
        shutil.rmtree(self._folder(operator), ignore_errors=True)

    def _folder(self, operator: str) -> Path:
        return self._res.local_dir / f"{self._token}-{operator}-{self._res.slot}"


def _closed(close: Callable[[], None], copies: LocalCopies, folder: Path) -> None:
    try:
        close()
    finally:
        copies.closed(folder)
