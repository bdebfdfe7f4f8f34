"""Listening on the first free port of a range."""

import asyncio
import errno
from collections.abc import Callable

from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.ports import PortRange


async def listen_on_one_of(host: str, ports: PortRange, protocol: Callable[[], asyncio.BaseProtocol]) -> asyncio.Server:
    """Raises `Unavailable` if all ports are in use."""
    loop = asyncio.get_running_loop()
    for wanted in ports:
        try:
            return await loop.create_server(protocol, host, wanted)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise Unavailable(f"all ports {ports} of {host} are in use: give slot_ports a port for each slot of a host")
