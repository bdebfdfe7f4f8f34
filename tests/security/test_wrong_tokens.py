"""Wrong tokens at REST: answers slow down, with bounded memory and log lines; right tokens never wait."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
from starlette.responses import Response

from barrier_runtime.coordinator.client.rest_token import Signatures, Token
from barrier_runtime.coordinator.server import guard
from barrier_runtime.coordinator.server.guard import LONGEST_PAUSE_MS, MOST_PAUSES, Guard
from barrier_runtime.coordinator.server.web.sessions import FREE_ATTEMPTS
from barrier_runtime.coordinator.wire.handshake import LINES

SECRET = "7" * 64
RIGHT, WRONG = ({"Authorization": f"Bearer {each}"} for each in (SECRET, "8" * 64))
STRANGER = "203.0.113.7"

Pause = Callable[[float], Awaitable[None]]


@contextlib.asynccontextmanager
async def guarded(pause: Pause, *hosts: str) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Yields a client of each host."""
    app = Guard(Response("served"), Token("operator", SECRET.encode()), Signatures(SECRET.encode()), pause=pause)
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                httpx.AsyncClient(transport=httpx.ASGITransport(app, client=(host, 7)), base_url="http://daemon")
            )
            for host in hosts
        ]


class Pauses:
    """Records pauses, and keeps callers waiting until `end` is set."""

    def __init__(self, *, ended: bool) -> None:
        self.seconds: list[float] = []
        self.end = asyncio.Event()
        if ended:
            self.end.set()

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await self.end.wait()


async def statuses(client: httpx.AsyncClient, headers: dict[str, str], times: int) -> list[int]:
    return [(await client.get("/jobs", headers=headers)).status_code for _ in range(times)]


async def test_wrong_tokens_of_a_client_wait_ever_longer_up_to_a_bound() -> None:
    pauses = Pauses(ended=True)
    async with guarded(pauses, STRANGER) as (client,):
        assert await statuses(client, WRONG, FREE_ATTEMPTS + 5) == [401] * (FREE_ATTEMPTS + 5)
    assert pauses.seconds == pytest.approx([1.0] + [LONGEST_PAUSE_MS / 1000] * 5, abs=0.9)
    assert max(pauses.seconds) <= LONGEST_PAUSE_MS / 1000


async def test_a_wrong_signature_waits_as_a_wrong_token_does() -> None:
    pauses = Pauses(ended=True)
    async with guarded(pauses, STRANGER) as (client,):
        wrong = {"Authorization": f"BarrierRuntime-HMAC-SHA256 1:{'n' * 32}:{'0' * 64}"}
        assert await statuses(client, wrong, FREE_ATTEMPTS + 1) == [401] * (FREE_ATTEMPTS + 1)
    assert pauses.seconds


async def test_right_tokens_of_the_same_address_never_wait() -> None:
    """G2"""
    pauses = Pauses(ended=False)
    async with guarded(pauses, STRANGER) as (client,):
        await statuses(client, WRONG, FREE_ATTEMPTS - 1)
        waiting = [asyncio.create_task(statuses(client, WRONG, 1)) for _ in range(3)]
        while len(pauses.seconds) < len(waiting):
            await asyncio.sleep(0)
        assert await statuses(client, RIGHT, 20) == [200] * 20
        assert not any(task.done() for task in waiting)
        pauses.end.set()
        assert await asyncio.gather(*waiting) == [[401]] * 3


async def test_clients_of_other_addresses_and_calls_without_a_token_do_not_wait() -> None:
    pauses = Pauses(ended=True)
    async with guarded(pauses, STRANGER, "203.0.113.8") as (stranger, other):
        await statuses(stranger, WRONG, FREE_ATTEMPTS)
        before = len(pauses.seconds)
        assert await statuses(other, WRONG, FREE_ATTEMPTS - 1) == [401] * (FREE_ATTEMPTS - 1)
        assert await statuses(stranger, {}, 20) == [401] * 20
        assert len(pauses.seconds) == before


async def test_addresses_of_an_ipv6_network_count_together() -> None:
    pauses = Pauses(ended=True)
    async with guarded(pauses, *(f"2001:db8::{number}" for number in range(FREE_ATTEMPTS))) as clients:
        for client in clients:
            await statuses(client, WRONG, 1)
    assert len(pauses.seconds) == 1


@pytest.mark.slow
async def test_waiting_answers_take_a_bounded_number_of_connections() -> None:
    pauses = Pauses(ended=False)
    async with guarded(pauses, STRANGER) as (client,):
        await statuses(client, WRONG, FREE_ATTEMPTS - 1)
        waiting = [asyncio.create_task(statuses(client, WRONG, 1)) for _ in range(MOST_PAUSES)]
        while len(pauses.seconds) < MOST_PAUSES:
            await asyncio.sleep(0)
        assert await statuses(client, WRONG, 3) == [401] * 3
        pauses.end.set()
        await asyncio.gather(*waiting)


@pytest.mark.slow
async def test_a_wall_clock_that_jumps_brings_no_more_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "now_ms", itertools.count(0, 3_600_000).__next__)
    with caplog.at_level(logging.WARNING, "coordinator.rest"):
        async with guarded(Pauses(ended=True), STRANGER) as (client,):
            await statuses(client, WRONG, 3 * LINES)
    assert len(caplog.records) <= 2 * LINES, "a minute may end within the test"


async def test_log_lines_about_wrong_tokens_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "coordinator.rest"):
        async with guarded(Pauses(ended=True), STRANGER) as (client,):
            await statuses(client, WRONG, 3 * LINES)
    lines = [record.getMessage() for record in caplog.records]
    assert f"call from {STRANGER} refused: it has another token than this daemon" in lines
    assert len(lines) <= 2 * LINES, "a minute may end within the test"
    assert WRONG["Authorization"][7:] not in "".join(lines)
