"""Simulated world: virtual time, a random generator, and processes.

A single OS thread runs everything, so the seed determines the history. Addresses, hashes of strings and the garbage
collector must not influence a run: tasks and futures hash by number, collection is off, and a dead process's remains
stay until the simulation is closed.
"""

# These classes replace classes of asyncio whose full interface is not used here.
# mypy: disable-error-code="override,abstract,assignment,arg-type,type-arg,attr-defined"

import asyncio
import contextvars
import gc
import hashlib
import random
import shutil
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from barrier_runtime.runtime.host.clock import LoopTimer
from barrier_runtime.testing.simulation.contracts import Event
from barrier_runtime.testing.simulation.jobs import LATEST_START_US, Jobs, Pool, SimWorkers, settle
from barrier_runtime.testing.simulation.network import SimListening, SimNetwork, SimServer

WALL_START_NS = 1_767_225_600 * 1_000_000_000  # 2026-01-01
SECOND = 1_000_000
_ALIVE, _STALLED, _DEAD = "alive", "stalled", "dead"
_TRACE_BLOCK = 512
_AWAKE_US = (5, 60)  # until a thread of a resumed process runs
_LOOK_S = 0.0005
_NUMBER_STEP = 4096
_MEMORY_FOLDER = Path("/dev/shm")


class OutOfSteps(Exception):
    """Probably the simulation loops."""


@dataclass(frozen=True)
class Problem:
    at_s: float
    process: str
    message: str
    error: BaseException | None

    def __str__(self) -> str:
        return f"{self.at_s:.6f} {self.process}: {self.message}: {self.error!r}"


class Simulation:
    def __init__(self, seed: int, *, max_steps: int = 20_000_000) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.bits: Callable[[int], int] = self.rng.getrandbits
        self.now_us = 0
        self.steps = 0
        self.max_steps = max_steps
        self.closed = False
        self.problems: list[Problem] = []
        self.processes: list[SimProcess] = []
        self._events: list[tuple[int, int, Event, Any]] = []
        self._sequence = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._untold: list[tuple[Any, ...]] = []
        self._last: deque[tuple[Any, ...]] = deque(maxlen=200)
        self._directory: Path | None = None
        self._collector_was_on = False
        self.jobs = Jobs(self)
        self.network = SimNetwork(self)

    @property
    def now_s(self) -> float:
        return self.now_us / SECOND

    def at(self, when_us: int, event: Event, argument: Any = None) -> None:
        """Equal times keep the order of calls."""
        self._sequence += 1
        heappush(self._events, (when_us, self._sequence, event, argument))

    def after(self, delay_us: int, event: Event, argument: Any = None) -> None:
        self._sequence += 1
        heappush(self._events, (self.now_us + delay_us, self._sequence, event, argument))

    def run_for(self, seconds: float) -> None:
        self.run_to(self.now_us + int(seconds * SECOND))

    def run_to(self, end_us: int) -> None:
        events = self._events
        left = self.max_steps - self.steps
        steps = 0
        while events and events[0][0] <= end_us:
            if steps >= left:
                raise OutOfSteps(
                    f"seed {self.seed}: {self.max_steps} steps and the clock only reads {self.now_s:.6f} s: something "
                    f"goes round and round; the last events:\n{self.last_events(20)}"
                )
            when, _, event, argument = heappop(events)
            self.now_us = when
            steps += 1
            event(argument)
        self.steps += steps
        self.now_us = max(self.now_us, end_us)

    def run_until(self, condition: Callable[[], bool], within_s: float, *, look_every_s: float = 0.005) -> bool:
        """Runs until `condition()`. False: not within `within_s`."""
        end_us = self.now_us + int(within_s * SECOND)
        every_us = max(1, int(look_every_s * SECOND))
        while not condition():
            if self.now_us >= end_us:
                return False
            self.run_to(min(end_us, self.now_us + every_us))
        return True

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def between_us(self, low_us: int, high_us: int) -> int:
        return low_us + int(self.rng.random() * (high_us - low_us + 1))

    def trace(self, kind: str, *details: object) -> None:
        """Details must not show addresses."""
        self._untold.append((self.now_us, kind, *details))
        if len(self._untold) >= _TRACE_BLOCK:
            self._tell()

    def _tell(self) -> None:
        self._hash.update(repr(self._untold).encode())
        self._last.extend(self._untold)
        self._untold.clear()

    def trace_hash(self) -> str:
        self._tell()
        whole = self._hash.copy()
        whole.update(repr((self.now_us, self.steps, self.rng.getstate())).encode())
        return whole.hexdigest()

    def last_events(self, count: int = 200) -> str:
        self._tell()
        return "\n".join(
            f"{when / SECOND:12.6f}  {kind}  {' '.join(str(detail) for detail in details)}"
            for when, kind, *details in list(self._last)[-count:]
        )

    def new_id(self) -> str:
        return f"{self.bits(128):032x}"

    @property
    def directory(self) -> Path:
        """Folder for local files, in memory if possible. The path has a constant length."""
        if self._directory is None:
            parent = _MEMORY_FOLDER if _MEMORY_FOLDER.is_dir() else None
            self._directory = Path(tempfile.mkdtemp(prefix="barrier-sim-", dir=parent))
        return self._directory

    def __enter__(self) -> "Simulation":
        self._collector_was_on = gc.isenabled()
        gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self._collector_was_on:
            gc.enable()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for process in self.processes:
            process._abandon()
        self.jobs.close()
        for process in self.processes:
            process._unwind()
        self._events.clear()
        if self._directory is not None:
            shutil.rmtree(self._directory)


class SimProcess:
    """OS process: a loop, clocks, and blocking jobs. Network faults refer to the host, `place`."""

    def __init__(self, simulation: Simulation, name: str, place: str | None = None) -> None:
        self.simulation = simulation
        self.name = name
        self.place = place or name
        self.number = len(simulation.processes)
        self.pid = 1000 + self.number
        self.state = _ALIVE
        self.turn_us = 0  # of virtual time per turn: a slow machine
        self.skew_ns = 0  # of the wall clock; may change at any moment
        self._steady_from_ns: int | None = None
        self.jobs: dict[Any, None] = {}
        self.held: list[tuple[Event, Any]] = []
        self._stalled_until_us: int | None = None
        self._left: list[asyncio.Task[Any]] = []
        simulation.processes.append(self)
        self.loop = SimLoop(self)
        simulation.trace("process", name, self.place)

    def wall_ns(self) -> int:
        return WALL_START_NS + self.simulation.now_us * 1000 + self.skew_ns

    def monotonic_s(self) -> float:
        return self.simulation.now_us / SECOND

    def steady_ms(self) -> int:
        """Time of `server/clock.SteadyClock`: the wall clock at the first read, then steady."""
        if self._steady_from_ns is None:
            self._steady_from_ns = self.wall_ns() - self.simulation.now_us * 1000
        return (self._steady_from_ns + self.simulation.now_us * 1000) // 1_000_000

    def timer(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> LoopTimer:
        return LoopTimer(loop, ring)

    @property
    def alive(self) -> bool:
        return self.state is not _DEAD

    @property
    def stalled(self) -> bool:
        return self.state is _STALLED

    @property
    def running(self) -> bool:
        return self.state is _ALIVE

    def spawn(self, main: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        return self.loop.create_task(main)

    def workers(self, threads: int = 16, begins_us: int = LATEST_START_US) -> SimWorkers:
        return SimWorkers(self, threads, begins_us)

    def sleep(self, seconds: float) -> None:
        self.simulation.jobs.block(int(seconds * SECOND))

    def wait(self, event: threading.Event) -> None:
        while not event.is_set():
            self.sleep(_LOOK_S)

    def crash(self) -> None:
        """SIGKILL: no code of the process runs again."""
        self._die("crash")

    def leave(self) -> None:
        self._die("leave")

    def _die(self, how: str) -> None:
        if self.state is _DEAD:
            return
        self.simulation.trace(how, self.name)
        self._abandon()
        self.simulation.network.process_died(self, orderly=how == "leave")

    def stall(self, seconds: float | None = None) -> None:
        """SIGSTOP, and SIGCONT after `seconds` (None: at `resume`)."""
        if self.state is _DEAD:
            return
        simulation = self.simulation
        simulation.trace("stall", self.name)
        self.state = _STALLED
        self._stalled_until_us = None
        if seconds is not None:
            self._stalled_until_us = simulation.now_us + int(seconds * SECOND)
            simulation.at(self._stalled_until_us, self._stall_over)

    def resume(self) -> None:
        """SIGCONT. Held events run in order of arrival."""
        if self.state is not _STALLED:
            return
        self.simulation.trace("resume", self.name)
        self.state = _ALIVE
        self._stalled_until_us = None
        held, self.held = self.held, []
        for event, argument in held:
            self.simulation.after(self.simulation.between_us(*_AWAKE_US), event, argument)
        self.loop._arm()

    def _stall_over(self, _: object) -> None:
        if self._stalled_until_us == self.simulation.now_us:
            self.resume()

    def _abandon(self) -> None:
        """Keeps everything that could run code at collection."""
        if self.state is not _DEAD:
            self.state = _DEAD
            self._left = sorted(asyncio.all_tasks(self.loop), key=hash)

    def _unwind(self) -> None:
        asyncio._set_running_loop(self.loop)
        for task in self._left:
            task._log_destroy_pending = False
            coroutine = task.get_coro()
            assert isinstance(coroutine, Coroutine | Generator)
            try:
                coroutine.close()
            except Exception as error:
                self.simulation.trace("unwound", self.name, type(error).__name__)
        asyncio._set_running_loop(None)
        self.loop._ready.clear()

    def __repr__(self) -> str:
        return f"<{self.name} {self.state}>"


class SimHandle:
    __slots__ = ("_args", "_callback", "_context", "_when")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context, when: float
    ) -> None:
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context = context
        self._when = when

    def cancel(self) -> None:
        self._callback = None
        self._args = ()

    def cancelled(self) -> bool:
        return self._callback is None

    def when(self) -> float:
        return self._when


class SimTask(asyncio.Task):
    """Hashes by number, so that sets of tasks have a constant order."""

    def __init__(self, coroutine: Any, *, loop: "SimLoop", name: str, context: Any, number: int) -> None:
        self._number = number
        more: dict[str, Any] = (
            {} if sys.version_info < (3, 11) else {"context": context}
        )  # 3.10 always copies the context
        super().__init__(coroutine, loop=loop, name=name, **more)

    def __hash__(self) -> int:
        return self._number


class SimFuture(asyncio.Future):
    def __init__(self, *, loop: "SimLoop", number: int) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class SimLoop(asyncio.AbstractEventLoop):
    """Event loop of a process.

    A *turn*, an event of the simulation, runs the callbacks that wait in `_ready` at the start.
    """

    def __init__(self, process: SimProcess) -> None:
        self.process = process
        self.simulation = process.simulation
        self._ready: deque[SimHandle] = deque()
        self._turn_due = False
        self._numbers = process.number  # in steps, so that loops never share a number
        self._pools: dict[int, tuple[Any, Pool]] = {}
        self._bits = self.simulation.bits
        self._after = self.simulation.after

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        handle = SimHandle(callback, args, context if context is not None else contextvars.copy_context(), 0.0)
        if self.process.state is not _DEAD:
            self._ready.append(handle)
            if not self._turn_due:
                self._turn_due = True
                self._after(2 + self._bits(5) + self.process.turn_us, self._turn)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        now = self.simulation.now_us
        when = now + max(0, -int(-delay * SECOND // 1))
        handle = SimHandle(
            callback, args, context if context is not None else contextvars.copy_context(), when / SECOND
        )
        if self.process.state is not _DEAD:
            self.simulation.at(when, self._timer_due, handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        return self.call_later(when - self.time(), callback, *args, context=context)

    def _timer_due(self, handle: SimHandle) -> None:
        if handle._callback is None or self.process.state is _DEAD:
            return
        self._ready.append(handle)
        if not self._turn_due:
            self._turn_due = True
            self._after(2 + self._bits(5) + self.process.turn_us, self._turn)

    def _arm(self) -> None:
        if self._ready and not self._turn_due:
            self._turn_due = True
            self._after(2 + self._bits(5) + self.process.turn_us, self._turn)

    def _turn(self, _: object) -> None:
        process = self.process
        if process.state is not _ALIVE:
            self._turn_due = False
            return
        ready = self._ready
        asyncio._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                callback = handle._callback
                if callback is None:
                    continue
                try:
                    handle._context.run(callback, *handle._args)
                except (Exception, asyncio.CancelledError) as error:
                    self.call_exception_handler(
                        {"message": f"exception in callback {_name(callback)}", "exception": error}
                    )
                if process.state is not _ALIVE:
                    break
        finally:
            asyncio._set_running_loop(None)
            self._turn_due = False
        if ready and process.state is _ALIVE:
            self._turn_due = True
            self._after(2 + self._bits(5) + process.turn_us, self._turn)

    def time(self) -> float:
        return self.simulation.now_us / SECOND

    def create_future(self) -> SimFuture:
        self._numbers += _NUMBER_STEP
        return SimFuture(loop=self, number=self._numbers)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> SimTask:
        if self.process.state is _DEAD:
            coro.close()
        self._numbers += _NUMBER_STEP
        number = self._numbers
        name = name or f"{self.process.name}-{number // _NUMBER_STEP}"
        return SimTask(coro, loop=self, name=name, context=context, number=number)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        """Uses only the executor's number of threads. A shutdown cancels work that has not begun."""
        if executor is not None and executor._shutdown:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = self.create_future()
        _, pool = self._pools.get(id(executor)) or self._new_pool(executor)

        def wanted() -> bool:
            if executor is not None and executor._shutdown:
                future.cancel()
            return not future.done()

        pool.submit((lambda: func(*args)) if args else func, partial(settle, future), wanted)
        return future

    def _new_pool(self, executor: Any) -> tuple[Any, Pool]:
        threads = 32 if executor is None else executor._max_workers
        self._pools[id(executor)] = (executor, Pool(self.process, threads))
        return self._pools[id(executor)]

    async def create_connection(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await self.simulation.network.connect(self.process, protocol_factory, (host, port))

    async def create_server(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        sock: SimListening | None = None,
        **_: Any,
    ) -> SimServer:
        network = self.simulation.network
        if sock is None:
            assert host is not None
            assert port is not None
            listening = network.listen(host, port, place=self.process.place, owner=self.process)
        else:
            listening = sock
        return network.serve(listening, self.process, protocol_factory)

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return self.process.state is _DEAD

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        process, simulation = self.process, self.simulation
        if process.state is _DEAD:
            return
        error = context.get("exception")
        simulation.trace("problem", process.name, str(context.get("message")), type(error).__name__)
        simulation.problems.append(Problem(simulation.now_s, process.name, str(context.get("message")), error))

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)


def _name(callback: Callable[..., object]) -> str:
    return getattr(callback, "__qualname__", type(callback).__name__)
