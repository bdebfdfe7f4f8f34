"""Connection of the simulated network: both ends as asyncio transports.

write → send buffer (user) → window → wire (delay per delivery, in order) → receive buffer (kernel) → data_received

Data on two connections may arrive in either order. At most `WINDOW` bytes of a direction are on the wire or unread.
Chunks merge and split.
"""

# These classes replace classes of asyncio whose full interface is not used here.
# mypy: disable-error-code="override,abstract,assignment,arg-type,type-arg,attr-defined"

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from barrier_runtime.testing.simulation.contracts import AnyProcess, Event, Simulated

WINDOW = 64 * 1024
_READ_BYTES = 256 * 1024
_HIGH_WATER = 64 * 1024
_FIN, _RST = "fin", "rst"
Address = tuple[str, int]


class NetworkFaults:
    """Rates per delivery, which a test may change at any time."""

    def __init__(self) -> None:
        self.late = 1 / 256
        self.split = 1 / 32
        self.host_lost = 1 / 20  # of crashes: the peer notices when it writes
        self.never_told = 1 / 3  # of half-open ends: not even then


class Wires(Protocol):
    simulation: Simulated
    faults: NetworkFaults

    def delay_us(self, base_us: int) -> int: ...

    def waits(self, source: str, target: str, event: Event, argument: Any) -> bool:
        """Returns whether the way from `source` to `target` is blocked; then `event` runs later."""
        ...


class Connection:
    def __init__(self, network: Wires, number: int, client: AnyProcess, address: Address, place: str) -> None:
        simulation = network.simulation
        self.number = number
        self.address = address
        self.base_us = simulation.bits(simulation.bits(2) + 8)
        self.severed = False
        self.ends = (
            SimTransport(network, self, client.place, place),
            SimTransport(network, self, place, client.place),
        )
        self.ends[0].peer, self.ends[1].peer = self.ends[1], self.ends[0]
        self.ends[0].belong_to(client)

    @property
    def open(self) -> bool:
        return not (self.ends[0].shut and self.ends[1].shut)

    def __repr__(self) -> str:
        return f"<connection {self.number} {self.ends[0].place} → {self.ends[1].place}:{self.address[1]}>"


class SimTransport(asyncio.Transport):
    """`wire`: deliveries on the way to this end. `unread`: arrived bytes. `unsent`: bytes held back."""

    peer: "SimTransport"

    def __init__(self, network: Wires, connection: Connection, place: str, peer_place: str) -> None:
        super().__init__()
        self._network = network
        self._simulation = network.simulation
        self.connection = connection
        self.place = place
        self._peer_place = peer_place
        self.process: AnyProcess | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._protocol: asyncio.BaseProtocol | None = None
        self.wire: deque[list[Any]] = deque()  # [arrival_us, sent_us, bytes or _FIN or _RST]
        self._last_arrival_us = 0
        self._arrival_armed = False
        self.unread: list[bytes] = []
        self._in_flight = 0  # to this end: on the wire, or unread
        self._eof = False
        self._reset: Exception | None = None
        self.shut = False
        self.reset_on_write = False
        self.unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._high, self._low = _HIGH_WATER, _HIGH_WATER // 4
        self._protocol_paused = False
        self._reading = False
        self._read_armed = False
        self._write_armed = False
        self._closing = False
        self._lost = False
        self._told_eof = False

    def belong_to(self, process: AnyProcess) -> None:
        self.process = process
        self._loop = process.loop

    def start(self, protocol: asyncio.BaseProtocol, made: "asyncio.Future[None] | None" = None) -> None:
        self._protocol = protocol
        assert self._loop is not None
        self._loop.call_soon(self._started, made)

    def _started(self, made: "asyncio.Future[None] | None") -> None:
        assert self._protocol is not None
        self._protocol.connection_made(self)
        if not self._closing:
            self._reading = True
            self._arm_reading()
        if made is not None and not made.done():
            made.set_result(None)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return ("127.0.0.1", self.connection.address[1])  # loopback is not encrypted, which would cost time
        if name == "sockname":
            return (self.place, self.connection.address[1])
        return default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading and not self._closing:
            self._reading = True
            self._arm_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        self._high, self._low = high, low
        self._maybe_pause()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def can_write_eof(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        if self._lost or self.shut or not data:
            return
        if self._reset is not None:
            self._force_close(self._reset)
            return
        data = bytes(data)
        if not self.unsent:
            room = WINDOW - self.peer._in_flight
            if len(data) <= room:
                self.transmit(data)
                return
            if room > 0:
                self.transmit(data[:room])
                data = data[room:]
        self.unsent.append(data)
        self._unsent_bytes += len(data)
        self._maybe_pause()

    def writelines(self, list_of_data: Iterable[bytes]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._reading = False
        if not self.unsent:
            self._lose(None)

    def abort(self) -> None:
        self._force_close(None)

    def _force_close(self, error: Exception | None) -> None:
        if self._lost:
            return
        self.unsent.clear()
        self._unsent_bytes = 0
        self._closing = True
        self._reading = False
        self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        self._lost = True
        if self._loop is not None:
            self._loop.call_soon(self._connection_lost, error)

    def _connection_lost(self, error: Exception | None) -> None:
        self._simulation.trace("lost", self.connection.number, self.place, type(error).__name__)
        try:
            if self._protocol is not None:
                self._protocol.connection_lost(error)
        finally:
            self.socket_closed()

    def socket_closed(self) -> None:
        if self.shut:
            return
        self.shut = True
        unread = bool(self.unread)
        self.unread.clear()
        if self._reset is None and not self.connection.severed:
            self.peer._comes(_RST if unread else _FIN)

    def transmit(self, data: bytes) -> None:
        if self.connection.severed:
            self.peer._in_flight += len(data)
            if self.reset_on_write:
                self.reset_on_write = False
                self._simulation.after(self._simulation.between_us(1_000, 2_000_000), SimTransport.reset_arrived, self)
            return
        self.peer._in_flight += len(data)
        self.peer._comes(data)

    def _comes(self, what: Any) -> None:
        simulation = self._simulation
        wire = self.wire
        now = simulation.now_us
        network = self._network
        if wire and what is not _FIN and what is not _RST:
            last = wire[-1]
            if last[1] == now and last[2] is not _FIN and last[2] is not _RST:  # sent at the same moment
                last[2] += what
                return
        arrival = max(self._last_arrival_us, now + network.delay_us(self.connection.base_us))
        self._last_arrival_us = arrival
        wire.append([arrival, now, what])
        if not self._arrival_armed:
            self._arrival_armed = True
            simulation.at(arrival, SimTransport._arrive, self)

    def _arrive(self) -> None:
        if self._network.waits(self._peer_place, self.place, SimTransport._arrive, self):
            return
        wire, now, size = self.wire, self._simulation.now_us, 0
        while wire and wire[0][0] <= now:
            what = wire.popleft()[2]
            if what is _FIN:
                self._eof = True
            elif what is _RST:
                self._arrival_armed = False
                self.reset_arrived()
                return
            elif self.shut:
                self.peer.reset_later()
            else:
                self.unread.append(what)
                size += len(what)
        if size:
            self._simulation.trace("bytes", self.connection.number, self.place, size)
        if wire:
            self._simulation.at(wire[0][0], SimTransport._arrive, self)
        else:
            self._arrival_armed = False
        self._arm_reading()

    def reset_arrived(self) -> None:
        """Unread bytes can still be read."""
        if self.shut or self._reset is not None:
            return
        self._reset = ConnectionResetError(104, f"connection {self.connection.number} was reset by the peer")
        self._arm_reading()
        if self.unsent:
            self._arm_writing()

    def reset_later(self) -> None:
        self._simulation.after(self._network.delay_us(self.connection.base_us), SimTransport.reset_arrived, self)

    def _arm_reading(self) -> None:
        if self._reading and not self._read_armed and (self.unread or self._eof or self._reset is not None):
            assert self._loop is not None
            self._read_armed = True
            self._loop.call_soon(self._read_ready)

    def _read_ready(self) -> None:
        self._read_armed = False
        if not self._reading or self._closing:
            return
        if self.unread:
            self._read()
            if not self._reading or self._closing:
                return
        if self.unread:
            self._arm_reading()
        elif self._reset is not None:
            self._force_close(self._reset)
        elif self._eof and not self._told_eof:
            self._told_eof = True
            if not self._call("eof_received"):
                self.close()

    def _read(self) -> None:
        data = self.unread[0] if len(self.unread) == 1 else b"".join(self.unread)
        self.unread.clear()
        most = min(len(data), _READ_BYTES)
        if most > 1 and self._simulation.chance(self._network.faults.split):
            most = self._simulation.between_us(1, most - 1)
        if most < len(data):
            self.unread.append(data[most:])
            data = data[:most]
        self._in_flight -= most
        peer = self.peer
        if peer.unsent and not peer.shut:
            self._simulation.after(self._network.delay_us(self.connection.base_us), SimTransport._window_opened, peer)
        self._call("data_received", data)

    def _window_opened(self) -> None:
        if self.connection.severed or self._network.waits(
            self._peer_place, self.place, SimTransport._window_opened, self
        ):
            return
        self._arm_writing()

    def _arm_writing(self) -> None:
        if not self._write_armed and self._loop is not None:
            self._write_armed = True
            self._loop.call_soon(self._write_ready)

    def _write_ready(self) -> None:
        self._write_armed = False
        if self._lost:
            return
        if self._reset is not None:
            self._force_close(self._reset)
            return
        room = WINDOW - self.peer._in_flight
        while self.unsent and room > 0:
            data = self.unsent.popleft()
            if len(data) > room:
                self.unsent.appendleft(data[room:])
                data = data[:room]
            room -= len(data)
            self._unsent_bytes -= len(data)
            self.transmit(data)
        if self._protocol_paused and self._unsent_bytes <= self._low:
            self._protocol_paused = False
            self._call("resume_writing")
        if self._closing and not self.unsent and not self._lost:
            self._lose(None)

    def _maybe_pause(self) -> None:
        if self._unsent_bytes > self._high and not self._protocol_paused:
            self._protocol_paused = True
            self._call("pause_writing")

    def _call(self, method: str, *args: Any) -> Any:
        """An error ends the connection and goes to the loop."""
        try:
            return getattr(self._protocol, method)(*args)
        except Exception as error:
            assert self._loop is not None
            self._loop.call_exception_handler({"message": f"protocol.{method}() failed", "exception": error})
            self._force_close(error)
            return True
