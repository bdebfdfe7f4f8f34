"""A proxy on 127.0.0.1 that answers late, as a separate process.

    python -m benchmarks.slow_store.proxy http 9001 9000 --delay 30       before an S3 endpoint at port 9000
    python -m benchmarks.slow_store.proxy tcp 5433 5432 --delay 5         before a database

`http`: an answer is sent no sooner than the delay after the request is complete, so the emulator's time is part of the
delay. Client connections are kept alive even if the emulator closes the other connection, as moto's server does. Bodies
are streamed in both directions. `tcp`: each byte of the server is late by a delay, as on a longer route; a delay is
drawn for each answer, which begins with the first bytes after bytes of the client. The log has requests (`http`) or
waits for answers (`tcp`); `benchmarks.slow_store.requests` reads the log. If either side ends a connection, the proxy
ends the other.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.slow_store.delay import REGION, Delay
from benchmarks.slow_store.messages import Message, operation, without
from benchmarks.slow_store.requests import Request, encoded

_HELD = 4 << 20  # bytes of a delayed answer, above which the server waits too

Note = Callable[[Request], None]


class _Side(asyncio.Protocol):
    """An end of a connection; if the buffer of this end is full, the other end is not read."""

    other: "_Side | None" = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()


class HttpClient(_Side):
    """A client's connection: sequential requests, each over a separate connection to the emulator."""

    def __init__(self, target: int, draw: Callable[[], float], note: Note) -> None:
        self.target = target
        self.draw = draw
        self.note = note
        self._request: Message | None = None
        self._exchange: Exchange | None = None
        self._waiting = b""  # bytes of the next request, which waits for the current answer

    def data_received(self, data: bytes) -> None:
        if self._exchange is not None and self._request is None:
            self._waiting += data
            return
        if self._request is None:
            self._request = Message()
        known = bool(self._request.head)
        body, rest = self._request.feed(data)
        if not self._request.head:
            return
        if not known:
            self._exchange = self.other = Exchange(self, self._request.head)
        assert self._exchange is not None
        self._exchange.send(body, last=self._request.done)
        if self._request.done:
            self._request = None
            self._waiting += rest

    def answered(self, keep: bool) -> None:
        self._exchange = self.other = None
        if not keep or self._request is not None:  # if answered early, the rest of the request would follow
            self.transport.close()
            return
        self.transport.resume_reading()
        if self._waiting:
            data, self._waiting = self._waiting, b""
            self.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._exchange is not None:
            self._exchange.abandon()


class Exchange(_Side):
    """A request and the answer, over a connection to the emulator."""

    def __init__(self, client: HttpClient, head: bytes) -> None:
        self.other = self._client = client
        self._loop = asyncio.get_running_loop()
        self._operation, self._key = operation(head)
        self._unsent: list[bytes] | None = [without(head, b"connection")]  # None: connected
        self._method = head.split(b" ", 1)[0].decode("latin-1")
        self._answer = Message(self._method)
        self._asked_at = time.time()
        self._asked = time.monotonic()  # not the loop's time, which counts milliseconds and stands still within a turn
        self._complete = False
        self._delay = client.draw()
        self._held: list[bytes] | None = None  # None: before the answer's head, or after the delay
        self._ended = False
        self._sent = self._received = 0
        self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await self._loop.create_connection(lambda: self, "127.0.0.1", self._client.target)
        except OSError:
            self._cut()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        unsent, self._unsent = self._unsent or [], None
        transport.write(b"".join(unsent))
        if self._ended:
            transport.close()

    def send(self, body: bytes, *, last: bool) -> None:
        """Sends bytes of the request."""
        self._sent += len(body)
        if self._unsent is not None:
            self._unsent.append(body)
        elif body:
            self.transport.write(body)
        if last:
            self._complete, self._asked, self._asked_at = True, time.monotonic(), time.time()

    def data_received(self, data: bytes) -> None:
        while data and not self._answer.done:
            known = bool(self._answer.head)
            body, data = self._answer.feed(data)
            if not self._answer.head:
                return
            if self._answer.interim:
                self._client.transport.write(self._answer.head)
                self._answer = Message(self._method)
                continue
            if not known:
                self._hold()
            self._received += len(body)
            self._pass(body)
            if not known:
                self._release_in_time()

    def _hold(self) -> None:
        closes = self._answer.until_close
        self._held = [self._answer.head if closes else without(self._answer.head, b"connection")]

    def _release_in_time(self) -> None:
        wait_s = self._asked + self._delay - time.monotonic() if self._complete else 0.0
        if wait_s > 0:
            self._loop.call_later(wait_s, self._release_in_time)  # the timer may be early by a turn of the loop
        else:
            self._release()

    def _pass(self, body: bytes) -> None:
        if self._held is None:
            self._write(body)
        else:
            self._held.append(body)
            if self._received > _HELD:
                self.transport.pause_reading()

    def _release(self) -> None:
        held, self._held = self._held or [], None
        if self._received > _HELD and not self._ended:
            self.transport.resume_reading()
        self._write(b"".join(held))

    def _write(self, data: bytes) -> None:
        """Writes bytes of the answer; the log has the request before the client has the last of them."""
        if self._ended:
            return
        if self._answer.done:
            self._ended = True
            self._tell(int(self._answer.head[9:12]))
        self._client.transport.write(data)
        if self._answer.done:
            self.transport.close()
            self._client.answered(keep=not self._answer.until_close)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer.until_close and error is None:
            self._answer.done = True
            self._pass(b"")
        elif not self._answer.done:
            self._cut()

    def _cut(self) -> None:
        """Ends without an answer, because the emulator gave none."""
        if not self._ended:
            self._ended = True
            self._tell(0)
            self._client.transport.abort()

    def abandon(self) -> None:
        """Ends because the client is gone. The request stays sent."""
        if not self._ended:
            self._ended = True
            self._tell(0)
            if self._unsent is None:
                self.transport.close()

    def _tell(self, status: int) -> None:
        ms = (time.monotonic() - self._asked) * 1000
        self._client.note(
            Request(self._asked_at, self._operation, self._key, status, self._sent, self._received, round(ms, 2))
        )


class TcpClient(_Side):
    """A client's connection to a database."""

    def __init__(self, target: int, draw: Callable[[], float], note: Note) -> None:
        self.target = target
        self.draw = draw
        self.note = note
        self.asked_at: float | None = None  # None: everything sent has an answer
        self.sent = 0
        self._unsent: list[bytes] | None = []

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, made = await loop.create_connection(lambda: TcpServer(self), "127.0.0.1", self.target)
        except OSError:
            self.transport.abort()
            return
        self.other = made
        unsent, self._unsent = self._unsent or [], None
        made.transport.write(b"".join(unsent))
        if self.transport.is_closing():
            made.transport.close()

    def data_received(self, data: bytes) -> None:
        self.asked_at = self.asked_at or time.time()
        self.sent += len(data)
        if self._unsent is not None:
            self._unsent.append(data)
        elif self.other is not None:
            self.other.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()


class TcpServer(_Side):
    """The database's end of the same connection: the database's bytes arrive late, in order."""

    def __init__(self, client: TcpClient) -> None:
        self.other = self._client = client
        self._loop = asyncio.get_running_loop()
        self._delay = 0.0
        self._due = 0.0

    def data_received(self, data: bytes) -> None:
        client = self._client
        if client.asked_at is not None:
            self._delay = client.draw()
            took_ms = (time.time() + self._delay - client.asked_at) * 1000
            client.note(Request(client.asked_at, "ANSWER", "", 200, client.sent, len(data), round(took_ms, 2)))
            client.asked_at, client.sent = None, 0
        self._due = max(self._due, self._loop.time() + self._delay)
        self._loop.call_at(self._due, client.transport.write, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._loop.call_at(max(self._due, self._loop.time()), self._client.transport.close)


async def serve(kind: str, port: int, target: int, delay: Delay, log: Path) -> None:
    """Serves until the process ends."""
    source = random.Random(f"{kind}-{port}")
    with log.open("ab", buffering=0) as written:

        def note(request: Request) -> None:
            written.write(encoded(request))

        def connection() -> asyncio.Protocol:
            made = HttpClient if kind == "http" else TcpClient
            return made(target, lambda: delay.draw_s(source), note)

        server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", port, backlog=512)
        await server.serve_forever()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["http", "tcp"])
    parser.add_argument("port", type=int, help="to listen at")
    parser.add_argument("target", type=int, help="port of the server that answers")
    add_delay(parser)
    parser.add_argument("--log", type=Path, default=Path("requests.jsonl"), help="of requests (%(default)s)")
    chosen = parser.parse_args(arguments)
    uvloop.run(serve(chosen.kind, chosen.port, chosen.target, delay_of(chosen), chosen.log))


def add_delay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--delay", type=float, default=REGION.median_ms, help="median, in ms (%(default)s)")
    parser.add_argument("--sigma", type=float, default=REGION.sigma, help="log-normal (%(default)s)")
    parser.add_argument("--slow-share", type=float, default=REGION.slow_share, help="of the answers (%(default)s)")
    parser.add_argument("--slow", type=float, default=REGION.slow_ms, help="ms that those take more (%(default)s)")


def delay_of(chosen: argparse.Namespace) -> Delay:
    return Delay(chosen.delay, chosen.sigma, chosen.slow_share, chosen.slow)


if __name__ == "__main__":
    main()
