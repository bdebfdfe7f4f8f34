"""A temporary Redis server, from Debian's package, with data in an append-only file."""

import contextlib
import socket
from collections.abc import Iterator

from examples.servers.base import Server, find_program


class RedisServer(Server):
    name = "redis"

    def __init__(self) -> None:
        self._program = find_program("redis-server", "redis-server")
        super().__init__()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        # Even without fsync the kernel has a command before Redis answers, so SIGKILL loses none; with "everysec"
        # Redis delays writes during a flush.
        kept = ["--save", "", "--appendonly", "yes", "--appendfsync", "no"]
        return [self._program, "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.directory), *kept]

    def ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(100).startswith(b"+PONG")


@contextlib.contextmanager
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer()
    try:
        server.start()
        yield server
    finally:
        server.close()
