"""Process of one slot, started by `processes` or by the command `slot`.

The order comes by standard input, a socket, which closes when the starting program dies: then the slot's watchdog ends
this process.
"""

import socket
import struct
import sys

import msgspec

from barrier_runtime.coordinator.option_types import SlotOptions
from barrier_runtime.spark import deaths
from barrier_runtime.spark.task import SlotSettings, run_slot
from barrier_runtime.state.errors import BarrierRuntimeError

_LENGTH = struct.Struct("<Q")
_STDIN = 0


class SlotOrder(msgspec.Struct, frozen=True):
    """The slot alone unpickles the program (`spark.task.loaded_graph`)."""

    slot: int
    attempt: int
    graph: bytes
    options: SlotOptions
    secret: bytes
    control_addresses: tuple[tuple[str, int], ...]
    storage_url: str
    job: str
    program: str
    succeeds: bool = False
    died: dict[int, str] = {}  # earlier processes of this slot that a signal killed: pid -> "SIGKILL"

    def __repr__(self) -> str:
        return f"SlotOrder(job={self.job!r}, slot={self.slot}, secret=******)"


_ORDER = msgspec.msgpack.Decoder(SlotOrder)


def encoded(order: SlotOrder) -> bytes:
    data = msgspec.msgpack.encode(order)
    return _LENGTH.pack(len(data)) + data


def read_order() -> SlotOrder:
    with socket.socket(fileno=_STDIN) as ordering:
        try:
            (length,) = _LENGTH.unpack(_exactly(ordering, _LENGTH.size))
            return _ORDER.decode(_exactly(ordering, length))
        finally:
            ordering.detach()


def _exactly(ordering: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        more = ordering.recv(min(length - len(data), 1 << 20))
        if not more:
            raise EOFError("the program that started this slot has ended")
        data += more
    return bytes(data)


def main() -> int:
    order = read_order()
    deaths.told(order.died)
    settings = SlotSettings(
        graph=order.graph,
        options=order.options,
        secret=order.secret,
        control_addresses=order.control_addresses,
        storage_url=order.storage_url,
        job=order.job,
        program=order.program,
        succeeds=order.succeeds,
    )
    try:
        run_slot(order.slot, order.attempt, settings)
    except BarrierRuntimeError as error:
        print(f"barrier-runtime: slot {order.slot} begins again: {error}", file=sys.stderr)
        return 1
    return 0
