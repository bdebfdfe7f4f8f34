"""Channels that share a connection: parts of each channel's frames, and credit for each channel. Sans-io.

    part = edge u16 BE · length u64 BE · that many bytes of the channel's frames
    sign of life = a part of edge 65,535 without bytes
    credit = edge u16 BE · bytes u64 BE that the sender may have sent on the channel since the beginning

A channel without credit has no bytes in the socket, so the other channels do not wait for the channel's reader.
"""

import struct
from collections.abc import Callable, Mapping

from barrier_runtime.data.elements import Element, EndOfInput
from barrier_runtime.runtime.network.channels import ChannelId, InputChannel
from barrier_runtime.runtime.network.connection import Chunks
from barrier_runtime.runtime.network.frames import FrameError, FrameReader, FrameWriter
from barrier_runtime.state.errors import BarrierRuntimeError

_HEAD = struct.Struct(">HQ")
_ALIVE = (0xFFFF, 0)
ALIVE = _HEAD.pack(*_ALIVE)


class ReceivingStream:
    def __init__(self, edge: int, target: InputChannel) -> None:
        self.edge = edge
        self.ended = False
        self.received = 0  # bytes of frames
        self._target = target
        self._reader = FrameReader()
        self._granted = 0

    def feed(self, data: bytes) -> None:
        self.received += len(data)
        for element, size in self._reader.feed(data):
            self._target.push(element, size)
            if isinstance(element, EndOfInput):
                self.ended = True

    def credit(self) -> bytes:
        """Returns b"" if the sender knows the credit."""
        credit = self.received + self._target.credit
        if credit <= self._granted or self.ended:
            return b""
        self._granted = credit
        return self.last_credit()

    def last_credit(self) -> bytes:
        return _HEAD.pack(self.edge, self._granted)


class PartReader:
    """`feed` raises `FrameError` at a wrong byte."""

    def __init__(self, streams: Mapping[int, ReceivingStream]) -> None:
        self._streams = streams
        self._head = b""  # the begin of a part
        self._stream: ReceivingStream | None = None
        self._left = 0  # bytes of the part

    def feed(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        at, size = 0, len(data)
        while at < size:
            if self._left:
                assert self._stream is not None
                part = data[at : at + self._left]
                at += len(part)
                self._left -= len(part)
                self._stream.feed(part)
            elif size - at < _HEAD.size:
                self._head = data[at:]
                return
            else:
                edge, self._left = _HEAD.unpack_from(data, at)
                at += _HEAD.size
                self._stream = self._streams.get(edge)
                if (self._stream is None or not self._left) and (edge, self._left) != _ALIVE:
                    raise FrameError(f"{self._left} bytes came for edge {edge}, which is no part of a channel")


class SendingStream:
    """`write` sends a part. Returns False if the connection is closing."""

    def __init__(self, channel: ChannelId, write: Callable[[Chunks], bool], wake_writer: Callable[[], None]) -> None:
        self.ended = False
        self.sent = 0  # bytes of frames
        self._channel = channel
        self._write = write
        self._wake_writer = wake_writer
        self._writer = FrameWriter()
        self._granted = 0

    @property
    def writable(self) -> bool:
        return self.sent < self._granted

    def take_credit(self, credit: int) -> None:
        waiting = not self.writable
        self._granted = max(self._granted, credit)
        if waiting and self.writable:
            self._wake_writer()

    def send(self, element: Element) -> None:
        try:
            chunks = self._writer.encode(element)
        except FrameError as error:
            raise BarrierRuntimeError(f"channel {self._channel}: {error}") from error
        size = sum(map(len, chunks))
        self.sent += size
        written = self._write([_HEAD.pack(self._channel.edge, size), *chunks])
        self.ended = written and isinstance(element, EndOfInput)


class CreditReader:
    """`feed` raises `FrameError` at a wrong byte."""

    def __init__(self, streams: Mapping[int, SendingStream]) -> None:
        self._streams = streams
        self._rest = b""

    def feed(self, data: bytes) -> None:
        data = self._rest + data
        whole = len(data) // _HEAD.size * _HEAD.size
        self._rest = data[whole:]
        for edge, credit in dict(_HEAD.iter_unpack(data[:whole])).items():
            stream = self._streams.get(edge)
            if stream is None:
                raise FrameError(f"credit came for edge {edge}, which has no channel here")
            stream.take_credit(credit)
