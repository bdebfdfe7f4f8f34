"""An attempt to reach another host, which tells lost packets from a refusal."""

import asyncio
import errno
from collections.abc import Callable

from barrier_runtime.runtime.host.within import within

_CONNECT_TIMEOUT_S = 2.0  # the kernel would repeat a lost request after 1, 3 and 7 s
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH)
_NO_ROUTE_S = 0.5  # pause after an attempt without a route, which fails at once


class PacketsLost(Exception):
    """A host answered neither with a connection nor with a refusal."""


async def reach(protocol: Callable[[], asyncio.Protocol], host: str, port: int) -> None:
    """Connects. Raises `PacketsLost`, or `OSError` for a refusal."""
    loop = asyncio.get_running_loop()
    try:
        await within(_CONNECT_TIMEOUT_S, loop.create_connection(protocol, host, port))
    except asyncio.TimeoutError as error:
        raise PacketsLost from error
    except OSError as error:
        if error.errno not in _NO_ROUTE:
            raise
        await asyncio.sleep(_NO_ROUTE_S)
        raise PacketsLost from error
