"""A Redis server of this run's own, from Debian's package. Keeps its data in an append-only file."""

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
        # Without fsync each command is in the kernel's hands before its answer, which SIGKILL cannot take back; with
        # "everysec" Redis puts writes off while a flush is under way.
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
