"""Answers a coordinator's `Probe`: reachable slots, and whether the store can be read."""

import asyncio
import time
from collections.abc import Callable

from barrier_runtime.coordinator.wire.messages import Peer, Probe, Probed
from barrier_runtime.state.threads import Threads

LIMIT_S = 4.0
_AT_ONCE = 64  # silent slots of a job of that size cost the limit once


async def probed(probe: Probe, slot: int, read_store: Callable[[], object], limit_s: float = LIMIT_S) -> Probed:
    """`read_store` blocks and raises; runs in a thread."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def limited(peer: Peer) -> str:
        async with turns:
            return await _dialed(peer, limit_s)

    others = _staggered([peer for peer in probe.peers if peer.slot != slot], slot)
    dialing = asyncio.gather(*map(limited, others))
    (store, store_ms), errors = await asyncio.gather(_store(read_store, limit_s), dialing)
    unreached = {peer.slot: error for peer, error in zip(others, errors, strict=True) if error}
    return Probed(store, store_ms, unreached)


def _staggered(peers: list[Peer], slot: int) -> list[Peer]:
    """Begins with the next slot: not all slots connect to slot 0 at once."""
    return [peer for peer in peers if peer.slot > slot] + [peer for peer in peers if peer.slot < slot]


async def _dialed(peer: Peer, limit_s: float) -> str:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(peer.host, peer.port), limit_s)
    except asyncio.TimeoutError:
        return f"no answer for {limit_s:g} s"
    except (OSError, ValueError) as error:  # ValueError: a name that no encoding of host names takes
        return str(error)
    writer.close()
    return ""


async def _store(read: Callable[[], object], limit_s: float) -> tuple[str, int]:
    began, error = time.monotonic(), ""
    thread = Threads(1, "barrier-probe")  # the slot's exit does not wait for a store that never answers
    try:
        await asyncio.wait_for(asyncio.wrap_future(thread.submit(read)), limit_s)
    except asyncio.TimeoutError:
        error = f"no answer for {limit_s:g} s"
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    finally:
        thread.close()
    return error, round((time.monotonic() - began) * 1000)
