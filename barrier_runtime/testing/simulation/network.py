"""Simulated network: listening sockets, connection setup, and faults.

The kernel closes the sockets of a dead process, unless the host is gone, and accepts connects and bytes for a stalled
process.
"""

# These classes replace classes of asyncio whose full interface is not used here.
# mypy: disable-error-code="override,abstract,assignment,arg-type,type-arg,attr-defined"

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from barrier_runtime.testing.simulation.connection import Address, Connection, NetworkFaults, SimTransport
from barrier_runtime.testing.simulation.contracts import AnyProcess, Event, Simulated

_LATE_US = 50_000
Factory = Callable[[], asyncio.BaseProtocol]


class SimListening:
    """Listening socket, which may outlive the process: connects then wait."""

    family = type = 0

    def __init__(self, address: Address, place: str, owner: AnyProcess | None) -> None:
        self.address = address
        self.place = place
        self.owner = owner
        self.closed = False
        self.backlog: deque[SimTransport] = deque()
        self.servers: list[SimServer] = []

    def getsockname(self) -> Address:
        return self.address

    def setblocking(self, flag: bool) -> None:
        pass


class SimServer(asyncio.AbstractServer):
    def __init__(self, listening: SimListening, process: AnyProcess, factory: Factory, network: "SimNetwork") -> None:
        self._listening = listening
        self.process = process
        self._factory = factory
        self._network = network
        self._serving = True

    @property
    def sockets(self) -> tuple[SimListening, ...]:
        return (self._listening,) if self._serving else ()

    def is_serving(self) -> bool:
        return self._serving

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.process.loop

    def close(self) -> None:
        """Stops accepting. Accepted connections and an inherited listening socket stay open."""
        if self._serving:
            self._serving = False
            self._listening.servers.remove(self)
            if self._listening.owner is self.process:
                self._network.stop_listening(self._listening)

    async def wait_closed(self) -> None:
        pass

    def accept(self) -> None:
        backlog = self._listening.backlog
        while self._serving and backlog:
            end = backlog.popleft()
            end.belong_to(self.process)
            end.start(self._factory())


class SimNetwork:
    def __init__(self, simulation: Simulated) -> None:
        self.simulation = simulation
        self.faults = NetworkFaults()
        self._listening: dict[Address, SimListening] = {}
        self._connections: dict[int, Connection] = {}
        self._made = 0
        self._ports = 40_000
        self._clogged: dict[tuple[str, str], None] = {}
        self._parked: dict[tuple[str, str], list[tuple[Event, Any]]] = {}

    def listen(self, host: str, port: int = 0, *, place: str, owner: AnyProcess | None = None) -> SimListening:
        """Opens a socket. Without an owner the socket outlives every process that serves it."""
        if port == 0:
            self._ports += 1
            port = self._ports
        if (host, port) in self._listening:
            raise OSError(98, f"address {host}:{port} is in use")
        listening = self._listening[host, port] = SimListening((host, port), place, owner)
        return listening

    def stop_listening(self, listening: SimListening) -> None:
        if not listening.closed:
            listening.closed = True
            del self._listening[listening.address]
            for end in listening.backlog:
                end.socket_closed()
            listening.backlog.clear()

    def serve(self, listening: SimListening, process: AnyProcess, factory: Factory) -> SimServer:
        if listening.closed:
            raise OSError(9, f"the listening socket {listening.address} is closed")
        server = SimServer(listening, process, factory, self)
        listening.servers.append(server)
        if listening.backlog:
            process.loop.call_soon(server.accept)
        return server

    async def connect(
        self, process: AnyProcess, factory: Factory, address: Address
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        attempt = _Attempt(process, address)
        self.simulation.after(self.delay_us(0), self._syn, attempt)
        end: SimTransport | None = None
        try:
            end = await attempt.established
        finally:
            attempt.over = True
            if end is None and attempt.end is not None:
                attempt.end.socket_closed()
        protocol = factory()
        made = process.loop.create_future()
        end.start(protocol, made)
        try:
            await made
        except BaseException:
            end.close()
            raise
        return end, protocol

    def _syn(self, attempt: "_Attempt") -> None:
        listening = self._listening.get(attempt.address)
        process = attempt.process
        if not process.alive or attempt.over:
            return
        place = listening.place if listening is not None else ""
        if self.waits(process.place, place, self._syn, attempt):
            return
        if listening is None:
            self.simulation.after(self.delay_us(0), self._refused, attempt)
            return
        self._made += 1
        connection = Connection(self, self._made, process, listening.address, place)
        self._connections[connection.number] = connection
        self.simulation.trace("connect", connection.number, process.name, place, listening.address[1])
        attempt.end, accepted = connection.ends
        listening.backlog.append(accepted)
        for server in listening.servers:
            server.process.loop.call_soon(server.accept)
        self.simulation.after(self.delay_us(connection.base_us), self._syn_ack, attempt)

    def _syn_ack(self, attempt: "_Attempt") -> None:
        end = attempt.end
        assert end is not None
        if not attempt.process.alive or self.waits(end.peer.place, end.place, self._syn_ack, attempt):
            return
        attempt.process.loop.call_soon(attempt.settle, end, None)

    def _refused(self, attempt: "_Attempt") -> None:
        error = ConnectionRefusedError(111, f"connect to {attempt.address} refused")
        attempt.process.loop.call_soon(attempt.settle, None, error)

    @property
    def connections(self) -> list[Connection]:
        for number in [number for number, connection in self._connections.items() if not connection.open]:
            del self._connections[number]
        return list(self._connections.values())

    def cut(self, connection: Connection) -> None:
        """Resets both ends, each after its own delay; bytes on the wire are lost."""
        self._sever(connection, "cut")
        for end in connection.ends:
            end.reset_later()

    def half_open(self, connection: Connection, told: SimTransport) -> None:
        """Resets only the end `told`. The other end notices when it writes, or never."""
        self._sever(connection, "half open")
        told.reset_later()
        if not self.simulation.chance(self.faults.never_told):
            told.peer.reset_on_write = True

    def clog(self, source: AnyProcess | str, target: AnyProcess | str) -> None:
        """Delays everything from `source` to `target` (places, or processes on them)."""
        pair = _place(source), _place(target)
        self.simulation.trace("clog", *pair)
        self._clogged[pair] = None

    def unclog(self, source: AnyProcess | str, target: AnyProcess | str) -> None:
        pair = _place(source), _place(target)
        if pair not in self._clogged:
            return
        self.simulation.trace("unclog", *pair)
        del self._clogged[pair]
        for event, argument in self._parked.pop(pair, ()):
            self.simulation.after(self.delay_us(0), event, argument)

    @property
    def clogged(self) -> list[tuple[str, str]]:
        return list(self._clogged)

    def partition(self, some: Iterable[AnyProcess | str], others: Iterable[AnyProcess | str]) -> None:
        others = [_place(other) for other in others]
        for one in some:
            for other in others:
                self.clog(one, other)
                self.clog(other, one)

    def heal(self) -> None:
        for source, target in self.clogged:
            self.unclog(source, target)

    def process_died(self, process: AnyProcess, *, orderly: bool) -> None:
        for listening in list(self._listening.values()):
            listening.servers = [server for server in listening.servers if server.process is not process]
            if listening.owner is process:
                self.stop_listening(listening)
        for connection in self.connections:
            for end in connection.ends:
                if end.process is process and not end.shut:
                    self._end_died(end, orderly)

    def _end_died(self, end: SimTransport, orderly: bool) -> None:
        if orderly:
            while end.unsent:
                end.transmit(end.unsent.popleft())
        elif self.simulation.chance(self.faults.host_lost):
            self._sever(end.connection, "host lost")
            end.shut = True
            end.peer.reset_on_write = True
            return
        elif self.simulation.bits(1):
            self._sever(end.connection, "reset")
            end.peer.reset_later()
        end.socket_closed()

    def delay_us(self, base_us: int) -> int:
        simulation = self.simulation
        if self.faults.late and simulation.rng.random() < self.faults.late:
            return base_us + simulation.between_us(1_000, _LATE_US)
        return base_us + 60 + simulation.bits(9)

    def waits(self, source: str, target: str, event: Event, argument: Any) -> bool:
        if not self._clogged or (source, target) not in self._clogged:
            return False
        self._parked.setdefault((source, target), []).append((event, argument))
        return True

    def _sever(self, connection: Connection, how: str) -> None:
        connection.severed = True
        self.simulation.trace(how, connection.number)
        for end in connection.ends:
            end.wire.clear()


class _Attempt:
    __slots__ = ("address", "end", "established", "over", "process")

    def __init__(self, process: AnyProcess, address: Address) -> None:
        self.process = process
        self.address = address
        self.established: asyncio.Future[SimTransport] = process.loop.create_future()
        self.end: SimTransport | None = None
        self.over = False

    def settle(self, end: SimTransport | None, error: Exception | None) -> None:
        if self.established.done():
            return
        if error is not None:
            self.established.set_exception(error)
        else:
            self.established.set_result(end)


def _place(where: AnyProcess | str) -> str:
    return where if isinstance(where, str) else where.place
