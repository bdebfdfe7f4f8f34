"""A real coordinator process on free loopback ports, for tests that connect like strangers: by socket."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.coordinator.client.trust import Trust
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.hosts import shown
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
BY_TOKEN = Trust()
TOKEN = "0123456789abcdef" * 4


@dataclass(frozen=True)
class Daemon:
    process: "subprocess.Popen[bytes]"
    control: tuple[str, int]
    http: tuple[str, int]
    log: Path
    folder: Path
    scheme: str = "http"
    trust: Trust = BY_TOKEN

    @property
    def url(self) -> str:
        return f"{self.scheme}://{shown(*self.http)}"

    @property
    def client(self) -> CoordinatorClient:
        return CoordinatorClient(self.url, TOKEN, trust=self.trust)

    @property
    def memory_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    @property
    def connections(self) -> int:
        """Number of accepted connections, without the two listening sockets."""
        found = psutil.Process(self.process.pid).net_connections("tcp")
        return sum(1 for each in found if each.status != psutil.CONN_LISTEN)

    def answers(self) -> bool:
        try:
            return self.client.health().status == "ok"
        except Unavailable:
            return False


def listening() -> list[socket.socket]:
    """Sockets for slots and for REST."""
    return [socket.create_server(("127.0.0.1", 0), backlog=1_024) for _ in range(2)]


@contextlib.contextmanager
def living_daemon(
    folder: Path, *arguments: str, scheme: str = "http", trust: Trust = BY_TOKEN, sockets: Sequence[socket.socket] = ()
) -> Iterator[Daemon]:
    token_file = folder / "operator.token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    sockets = sockets or listening()
    log = folder / "daemon.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "barrier_runtime.coordinator.server.daemon",
                    "--storage",
                    str(folder / "store"),
                ),
                *("--token-file", str(token_file), "--log-format", "json"),
                *("--control-fd", str(sockets[0].fileno()), "--http-fd", str(sockets[1].fileno()), *arguments),
            ],
            stderr=said,
            pass_fds=[each.fileno() for each in sockets],
            cwd=ROOT,
        )
    daemon = Daemon(process, sockets[0].getsockname()[:2], sockets[1].getsockname()[:2], log, folder, scheme, trust)
    try:
        until(daemon.answers, "the daemon to answer", patience_s=60)
        yield daemon
    finally:
        process.terminate()
        process.wait(timeout=240)
        for each in sockets:
            each.close()
