"""Opening and closing of the operators and sources of a generation, off the loop."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from barrier_runtime.coordinator.metric_table import SKIPPED_ROWS
from barrier_runtime.data.elements import Batch
from barrier_runtime.graph.job_graph import Chain, JobGraph
from barrier_runtime.operators.base import Operator, SplitPosition
from barrier_runtime.runtime.context import GenerationExecutors, OperatorContexts
from barrier_runtime.runtime.error_reports import naming_source
from barrier_runtime.runtime.host.workers import WorkerExecutor
from barrier_runtime.runtime.in_flight import read_in_flight
from barrier_runtime.runtime.resources import SlotResources
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.state.errors import BarrierRuntimeError, Unavailable
from barrier_runtime.state.outside_errors import of_operator
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot

_OPEN_AGAIN_S = 0.2  # pause before a chain is opened again; doubles
_OPEN_AGAIN_MOST_S = 10.0


class OpenChains:
    def __init__(
        self,
        graph: JobGraph,
        resources: SlotResources,
        contexts: OperatorContexts,
        executors: GenerationExecutors,
        waiting: Callable[[str, int, str], None],
    ) -> None:
        """`waiting(operator, attempts, error)`: called for each attempt without a server."""
        self._graph = graph
        self._res = resources
        self._contexts = contexts
        self._executors = executors
        self._waiting = waiting
        self.operators: dict[int, list[tuple[str, Operator]]] = {}
        self.sources: dict[int, tuple[str, SourceDriver]] = {}
        self._in_flight: dict[int, list[tuple[int, Batch]]] = {}
        self._restored: tuple[OperatorSnapshot, ...] = ()
        self._opening: list[asyncio.Future[None]] = []
        self._opened_now: dict[int, tuple[str, float]] = {}  # chain -> operator or source being opened, start
        self._at: dict[int, str] = {}
        self._cancelled = False
        self._stopped: asyncio.Future[None] = resources.loop.create_future()

    async def open(self, restored: tuple[OperatorSnapshot, ...]) -> None:
        """Opens all chains in parallel.

        While an operator's server does not answer, its chain is reopened, without limit.
        """
        self._restored = restored
        self._opening = [asyncio.ensure_future(self._open_patiently(chain)) for chain in self._graph.chains]
        # The first failure is raised at once; threads of other chains continue: see `quiet`.
        opened, _ = await asyncio.wait(self._opening, return_when=asyncio.FIRST_EXCEPTION)
        for each in opened:
            each.result()
        self._restored = ()

    def take_in_flight(self, chain: int) -> list[tuple[int, Batch]]:
        return self._in_flight.pop(chain, [])

    @property
    def being_opened(self) -> dict[str, float]:
        """Seconds since the start."""
        now_s = self._res.clock.monotonic_s()
        opened_now = list(self._opened_now.values())  # a copy: worker threads change the dict
        return {name: now_s - since_s for name, since_s in opened_now}

    @property
    def records(self) -> int:
        drivers = list(self.sources.values())  # a copy: worker threads still add during a restore
        return sum(driver.records for _, driver in drivers)

    @property
    def skipped(self) -> dict[str, float]:
        drivers = list(self.sources.values())
        return {SKIPPED_ROWS.key(name): float(rows) for name, each in drivers if (rows := each.skipped) is not None}

    def written(self, chain: int) -> Mapping[str, SplitPosition]:
        """Positions written by the sink, of all subtasks. Blocks."""
        operators = self.operators[chain]
        return operators[-1][1].written() if operators else {}

    def cancel(self) -> None:
        """Call at most once."""
        self._cancelled = True
        self._stopped.set_result(None)

    @property
    def quiet(self) -> bool:
        return all(opening.done() for opening in self._opening)

    def to_close(self) -> list[tuple[str, Callable[[], None]]]:
        """Closing calls of open operators and sources, by name. Requires `quiet`."""
        for opening in self._opening:
            if not opening.cancelled():
                opening.exception()  # marks the exception as retrieved: the waiter may have been cancelled
        parts = [(name, operator.closing()) for operators in self.operators.values() for name, operator in operators]
        parts += [(name, driver.close) for name, driver in self.sources.values()]
        return [(name, self._contexts.closing(name, close)) for name, close in parts]

    async def _open_patiently(self, chain: Chain) -> None:
        attempts = 0
        while not self._cancelled:
            try:
                await self._res.workers.run(partial(self._open_chain, chain))
                return
            except Unavailable as error:
                attempts += 1
                if not self._cancelled:
                    self._waiting(self._at[chain.id], attempts, str(error))
            except Exception as error:
                found = of_operator(error, self._at.get(chain.id, chain.name))
                raise found from (None if found is error else error)
            await self._res.workers.run(partial(self._close_chain, chain))
            if not self._cancelled:
                pause_s = min(_OPEN_AGAIN_MOST_S, _OPEN_AGAIN_S * 2 ** min(attempts - 1, 30))
                await asyncio.wait({self._stopped}, timeout=pause_s)

    # ------------------------------------------------------------ on worker threads

    def _open_chain(self, chain: Chain) -> None:
        try:
            self._open_in_turn(chain)
        finally:
            self._opened_now.pop(chain.id, None)

    def _open_in_turn(self, chain: Chain) -> None:
        if self._cancelled:
            return
        if chain.source is not None:
            driver = SourceDriver()
            self.sources[chain.id] = (chain.source.name, driver)
            self._at[chain.id] = chain.source.name
            self._begins(chain, chain.source.name)
            context = self._contexts.make(chain.id, chain.source.name, self._restored)
            with naming_source(chain.source, self._res.slot):
                driver.open(context, chain.source)
            context.opened()
        operators: list[tuple[str, Operator]] = []
        self.operators[chain.id] = operators
        for spec in chain.operators:
            if self._cancelled:
                return
            operator = spec.make()
            self._at[chain.id] = spec.name
            self._begins(chain, spec.name)
            operators.append((spec.name, operator))
            context = self._contexts.make(chain.id, spec.name, self._restored)
            operator.open(context)
            context.opened()
        if chain.source is None:
            self._executors.add_in_flight(chain.id)
            self._begins(chain, f"rows in flight to {chain.operators[0].name}")
            self._in_flight[chain.id] = read_in_flight(
                self._restored,
                chain.operators[0].name,
                {edge.port: edge for edge in self._graph.inputs(chain.id)},
                self._res.slot,
                self._graph.parallelism,
                self._graph.max_parallelism,
                self._res.store,
            )

    def _begins(self, chain: Chain, what: str) -> None:
        self._opened_now[chain.id] = what, self._res.clock.monotonic_s()

    def _close_chain(self, chain: Chain) -> None:
        opened: list[tuple[str, Operator | SourceDriver]] = [*self.operators.pop(chain.id, [])]
        if chain.id in self.sources:
            opened.append(self.sources.pop(chain.id))
        for name, each in opened:
            each.close()
            self._contexts.remove_folder(name)


Part: TypeAlias = tuple[str, Callable[[], None]]

POLL_S = 0.05


class Closing:
    """Sets `closed` after the last part.

    A commit may hang for ever: its thread then keeps only the sink in memory.
    """

    def __init__(self, resources: SlotResources, closed: asyncio.Future[None]) -> None:
        self._res = resources
        self._closed = closed
        self._left = 0

    def close(self, executor: WorkerExecutor | None, parts: list[Part]) -> None:
        self._left += 1
        self._when_quiet(executor, parts)

    def _when_quiet(self, executor: WorkerExecutor | None, parts: list[Part]) -> None:
        if executor is not None and executor.busy:
            self._res.loop.call_later(POLL_S, self._when_quiet, executor, parts)
        else:
            self._res.workers.submit(partial(_close_all, parts), self._done)

    def _done(self, result: Any, error: BaseException | None) -> None:
        self._left -= 1
        if not self._left and not self._closed.done():  # the waiter may have been cancelled
            self._closed.set_result(None)
        if error is not None:
            self._res.loop.call_exception_handler({"message": "closing a generation failed", "exception": error})


def _close_all(parts: list[Part]) -> None:
    troubles: list[tuple[str, Exception]] = []
    for name, close in parts:
        try:
            close()
        except Exception as error:
            troubles.append((name, error))
    if troubles:
        name, trouble = troubles[0]
        raise BarrierRuntimeError(f"closing operator {name} failed: {trouble}") from trouble
