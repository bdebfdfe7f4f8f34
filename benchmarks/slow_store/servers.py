"""Servers behind a proxy that answers late: S3, PostgreSQL, or any server on 127.0.0.1.

with slow_s3(REGION) as store:
    … flow.start_local(checkpoints=f"{store.url}/checkpoints") …
    print(store.requests())
"""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.slow_store.delay import REGION, Delay
from benchmarks.slow_store.ranges import BUCKET
from benchmarks.slow_store.requests import Request, read_requests
from examples.servers.base import Server
from examples.servers.postgres import postgres_server
from examples.servers.s3 import S3Server, known_to_clients


class LateServer(Server):
    """A module of `benchmarks.slow_store` that answers late, run as a process, with a log of requests."""

    def __init__(self, module: str, delay: Delay) -> None:
        super().__init__()
        self._module = module
        self._delay = delay

    @property
    def requests_log(self) -> Path:
        return self.directory / "requests.jsonl"

    def places(self) -> list[str]:
        """Returns the positional arguments of the module."""
        raise NotImplementedError

    def command(self) -> list[str]:
        delay = self._delay
        return [
            *(sys.executable, "-m", f"benchmarks.slow_store.{self._module}", *self.places()),
            *("--delay", str(delay.median_ms), "--sigma", str(delay.sigma)),
            *("--slow-share", str(delay.slow_share), "--slow", str(delay.slow_ms), "--log", str(self.requests_log)),
        ]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])}

    def ready(self) -> bool:
        socket.create_connection(("127.0.0.1", self.port), timeout=2).close()
        return True


class RangeServer(LateServer):
    """Serves the files of a folder (`ranges`). `url` is the bucket of all files."""

    name = "ranges"

    def __init__(self, folder: Path, delay: Delay) -> None:
        super().__init__("ranges", delay)
        self._folder = folder

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/?endpoint=http://127.0.0.1:{self.port}"

    def places(self) -> list[str]:
        return [str(self._folder.resolve()), str(self.port)]


class SlowProxy(LateServer):
    """The proxy's process, usable like the server behind the proxy: `endpoint` and `url` have the proxy's port."""

    name = "proxy"
    bucket = S3Server.bucket

    def __init__(self, kind: str, target: int, delay: Delay, behind: Server | None = None) -> None:
        super().__init__("proxy", delay)
        self.behind = behind
        self._kind = kind
        self._target = target

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}"

    def requests(self, since: float = 0.0, until: float = float("inf")) -> list[Request]:
        """Answered requests that arrived within these seconds since the epoch."""
        return read_requests(self.requests_log, since, until)

    def places(self) -> list[str]:
        return [self._kind, str(self.port), str(self._target)]


@contextlib.contextmanager
def slow(kind: str, server: Server, delay: Delay) -> Iterator[SlowProxy]:
    """A running proxy (`http` or `tcp`) before a running server."""
    proxy = SlowProxy(kind, server.port, delay, server)
    try:
        proxy.start()
        yield proxy
    finally:
        proxy.close()


@contextlib.contextmanager
def slow_s3(delay: Delay = REGION, server: S3Server | None = None) -> Iterator[SlowProxy]:
    """An S3 endpoint that answers late, with a single bucket; in this process's environment with credentials.

    `server`: a running server to use instead of a new server, for example with a second delay."""
    with contextlib.ExitStack() as kept:
        if server is None:
            server = S3Server()
            kept.callback(server.close)
            server.start()
        proxy = kept.enter_context(slow("http", server, delay))
        kept.enter_context(known_to_clients(proxy))  # type: ignore[arg-type]
        yield proxy


@contextlib.contextmanager
def slow_postgres(delay: Delay = REGION) -> Iterator[tuple[str, SlowProxy]]:
    """(URL of a database that answers late, the proxy)."""
    with postgres_server() as server, slow("tcp", server, delay) as proxy:
        yield server.url.replace(f":{server.port}", f":{proxy.port}"), proxy
