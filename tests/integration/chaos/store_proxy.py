"""A proxy between the job and its object store that spoils requests the way networks and stores do.

The proxy is a separate process, `python -m tests.integration.chaos.store_proxy <upstream port>`: prints two ports,
serves HTTP on the first, takes orders on the second (a JSON line in, a JSON line out; null only queries). Each request
has a separate connection to the store: the proxy reads the whole request before forwarding and the whole answer before
replying, so an answer can be lost after the request was applied. The end of a fault cuts held connections, as a
restarted store does.

| fault  | what the client of a spoiled request sees                     | applied? |
|--------|---------------------------------------------------------------|----------|
| refuse | its connection is reset at once                               | no       |
| hang   | nothing, until the fault ends                                 | no       |
| error  | 503 SlowDown                                                  | no       |
| hold   | nothing, until the fault ends                                 | yes      |
| cut    | the connection breaks instead of (or in the middle of) the answer | yes  |
| delay  | the answer, later                                             | yes      |
"""

import asyncio
import contextlib
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Literal

import msgspec

FaultName = Literal["pass", "refuse", "hang", "error", "hold", "cut", "delay"]
_LARGEST_HEAD = 64 * 1024
_SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.'
    b"</Message></Error>"
)


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fault: FaultName = "pass"
    share: float = 1.0  # of the requests
    path: str = ""  # only requests whose path contains this text
    method: str = ""  # only GET, PUT, …
    body: str = ""  # only requests whose body contains this text
    delay_s: float = 0.5
    seed: int = 0


class Counts(msgspec.Struct):
    """Numbers of requests since the start, by outcome."""

    passed: int = 0
    refuse: int = 0
    hang: int = 0
    error: int = 0
    hold: int = 0
    cut: int = 0
    delay: int = 0


class StoreProxy:
    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._fault = Fault()
        self._choose = random.Random(0)
        self._changed = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()
        self.counts = Counts()

    async def serve(self, client: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        """Serves a connection of a client. Every answer closes the connection: S3 clients open another."""
        this = asyncio.current_task()
        assert this is not None
        self._serving.add(this)  # asyncio itself would let a waiting task be collected
        try:
            await self._one_request(client, answer)
        except (OSError, EOFError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            answer.transport.abort()  # the client or the store disconnected: the client sees a broken connection
        finally:
            answer.close()
            self._serving.discard(this)

    async def obey(self, orders: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        while line := await orders.readline():
            fault = msgspec.json.decode(line, type=Fault | None)
            if fault is not None:
                self._fault = fault
                self._choose = random.Random(fault.seed)
                self._changed.set()
                self._changed = asyncio.Event()
            answer.write(msgspec.json.encode(self.counts) + b"\n")
            await answer.drain()
        answer.close()

    async def _one_request(self, client: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        head = await client.readuntil(b"\r\n\r\n")
        request_line, headers = _parsed(head)
        if headers.get("expect", "").lower() == "100-continue":
            answer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _body(client, headers)
        fault = self._fault if self._hits(request_line, body) else Fault()
        if fault.fault == "pass":
            self.counts.passed += 1
        elif fault.fault != "hold":  # counted when the request is applied
            setattr(self.counts, fault.fault, getattr(self.counts, fault.fault) + 1)
        if fault.fault == "refuse":
            _reset(answer)
        elif fault.fault == "hang":
            await self._changed.wait()
            _reset(answer)
        elif fault.fault == "error":
            answer.write(
                b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\nContent-Length: "
                + str(len(_SLOW_DOWN)).encode()
                + b"\r\n\r\n"
            )
            if not request_line.startswith("HEAD"):
                answer.write(_SLOW_DOWN)
            await answer.drain()
        else:
            if fault.fault == "delay":
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), fault.delay_s)
            whole = await self._ask_store(_for_store(head), body)
            if fault.fault == "hold":
                self.counts.hold += 1
                await self._changed.wait()
                _reset(answer)
            elif fault.fault == "cut":
                answer.write(whole[: self._choose.choice([0, 0, len(whole) // 2])])
                await answer.drain()
                _reset(answer)
            else:
                answer.write(whole)
                await answer.drain()

    def _hits(self, request_line: str, body: bytes) -> bool:
        fault = self._fault
        if fault.fault == "pass" or fault.path not in request_line or not request_line.startswith(fault.method):
            return False
        if fault.body.encode() not in body:
            return False
        return self._choose.random() < fault.share

    async def _ask_store(self, head: bytes, body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        try:
            writer.write(head + body)
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()


def _parsed(head: bytes) -> tuple[str, dict[str, str]]:
    request_line, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return request_line, {name.strip().lower(): value.strip() for name, value in pairs}


def _for_store(head: bytes) -> bytes:
    """The headers without those the proxy handles; the store has to close the connection after the answer."""
    ours = (b"connection:", b"expect:")
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith(ours)]
    return b"\r\n".join([first, *kept, b"Connection: close"]) + b"\r\n\r\n"


async def _body(client: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    """The body as received: chunks stay chunks."""
    if "chunked" not in headers.get("transfer-encoding", "").lower():
        return await client.readexactly(int(headers.get("content-length", "0")))
    whole = bytearray()
    while True:
        size = await client.readline()
        whole += size
        rest = await client.readexactly(int(size.split(b";")[0], 16) + 2)
        whole += rest
        if rest == b"\r\n":
            return bytes(whole)


def _reset(answer: asyncio.StreamWriter) -> None:
    """RST instead of an orderly end."""
    raw = answer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    answer.transport.abort()


async def _main(upstream_port: int) -> None:
    proxy = StoreProxy(upstream_port)
    serving = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=_LARGEST_HEAD, backlog=512)
    ordering = await asyncio.start_server(proxy.obey, "127.0.0.1", 0)
    print(*(server.sockets[0].getsockname()[1] for server in (serving, ordering)), flush=True)
    await asyncio.gather(serving.serve_forever(), ordering.serve_forever())


class ProxyControl:
    """The proxy as a child process, and the proxy's order line."""

    def __init__(self, process: "subprocess.Popen[str]", port: int, orders: socket.socket) -> None:
        self.pid = process.pid
        self.port = port
        self._orders = orders
        self._answers = orders.makefile("rb")

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def set(self, fault: Fault) -> Counts:
        """Sets the fault, which is in force at the return."""
        return self._order(fault)

    def counts(self) -> Counts:
        return self._order(None)

    def _order(self, fault: Fault | None) -> Counts:
        self._orders.sendall(msgspec.json.encode(fault) + b"\n")
        line = self._answers.readline()
        if not line:
            raise ConnectionError(f"the store proxy, process {self.pid}, is gone: see what it wrote to standard error")
        return msgspec.json.decode(line, type=Counts)


@contextlib.contextmanager
def store_proxy(upstream_port: int) -> Iterator[ProxyControl]:
    command = [sys.executable, "-m", "tests.integration.chaos.store_proxy", str(upstream_port)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise ConnectionError(f"the store proxy ended at once, exit code {process.wait()}")
        port, orders_port = map(int, line.split())
        with socket.create_connection(("127.0.0.1", orders_port)) as orders:
            yield ProxyControl(process, port, orders)
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(int(sys.argv[1])))
