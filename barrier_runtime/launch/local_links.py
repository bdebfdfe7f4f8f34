"""Connections of coordinator and slots in a single process: function calls in place of sockets."""

import asyncio
import time
from collections.abc import Callable, Sequence

from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.wire.codec import decode_to_coordinator, decode_to_slot, encode
from barrier_runtime.coordinator.wire.messages import Peer, Register, ToCoordinator, ToSlot
from barrier_runtime.data.elements import Element
from barrier_runtime.runtime.network.channels import Broken, ChannelId, InputChannel, LocalOutput, OutputChannel
from barrier_runtime.runtime.network.frames import FrameReader, FrameWriter
from barrier_runtime.runtime.slot import Slot


class LocalMesh:
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
    def __init__(self, mesh: LocalMesh, output: type[LocalOutput] = LocalOutput) -> None:
        self._mesh = mesh
        self._output = output

    async def listen(self) -> tuple[str, int]:
        return "local", 0

    def expect(self, token: int, channels: dict[ChannelId, InputChannel], broken: Broken) -> None:
        self._mesh.forget_before(token)
        for channel, target in channels.items():
            self._mesh.offer(channel, target)

    async def connect(
        self, peer: Peer, channels: Sequence[ChannelId], wake_writer: Callable[[], None]
    ) -> list[OutputChannel]:
        return [self._output(await self._mesh.find(channel), wake_writer) for channel in channels]

    async def all_connected(self) -> None:
        """Returns at once: a writer that is not connected yet has sent nothing."""

    def beat(self) -> dict[int, int]:
        return {}

    def disconnect(self) -> None:
        """Does nothing: channels of a dropped generation are unreachable by their token."""

    def close(self) -> None:
        """Does nothing: no connection is open."""


class WireOutput(LocalOutput):
    """Rows and control elements become frames."""

    __slots__ = ("_reader", "_writer")

    def __init__(self, target: InputChannel, wake_writer: Callable[[], None]) -> None:
        super().__init__(target, wake_writer)
        self._writer, self._reader = FrameWriter(), FrameReader()

    def send(self, element: Element) -> None:
        for arrived, size in self._reader.feed(b"".join(self._writer.encode(element))):
            self._target.push(arrived, size)


class LocalLink:
    """Control connection inside a loop: delivers in order, in later iterations."""

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
        """Does nothing: the message Shutdown ends the slot."""

    # the type of a message names the receiver
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
