"""Connections between slots, as the rest of the runtime sees them."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from barrier_runtime.coordinator.wire.messages import Peer
from barrier_runtime.runtime.network.channels import InputChannel, OutputChannel


class ChannelId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Claims of a data connection."""

    token: int
    edge: int
    source_slot: int
    target_slot: int


Broken = Callable[[ChannelId, str], None]


class DataPlane(Protocol):
    """Connections between slots; the local runtime has a data plane without sockets."""

    async def listen(self) -> tuple[str, int]: ...

    def expect(self, token: int, channels: dict[ChannelId, InputChannel], broken: Broken) -> None:
        """Sets the incoming channels of generation `token`."""
        ...

    async def connect(self, peer: Peer, channel: ChannelId, wake_writer: Callable[[], None]) -> OutputChannel: ...

    async def all_connected(self) -> None:
        """Returns when every expected channel is connected."""
        ...

    def beat(self) -> dict[int, int]:
        """Sends signs of life on idle connections. Call in equal intervals.

        Returns slots that were not heard -> number of calls since.
        """
        ...

    def disconnect(self) -> None:
        """Closes every channel of the current generation."""
        ...

    def close(self) -> None: ...
