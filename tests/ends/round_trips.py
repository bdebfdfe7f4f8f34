"""A proxy on 127.0.0.1 that counts exactly, without a clock, how often a client of a database waits for the server."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

_READ = 1 << 16


class Waits(Protocol):
    """Counts the waits of a connection. Each method has a separate calling thread."""

    def sent(self, data: bytes) -> int:
        """Number of waits that began with these bytes of the client."""
        ...

    def answered(self, data: bytes) -> int:
        """Number of waits that ended with these bytes of the server."""
        ...


class Turns:
    """Counts waits of clients that send a request in one piece: a wait ends with the first bytes after a request."""

    def __init__(self) -> None:
        self._asked = False

    def sent(self, data: bytes) -> int:
        self._asked = True
        return 0

    def answered(self, data: bytes) -> int:
        ended, self._asked = self._asked, False
        return ended


class PostgresWaits:
    """Counts waits of PostgreSQL's protocol: a wait ends when the server is ready for the next query, or for the rows
    of a COPY. A client may send several requests that are answered together, and further requests while waiting. The
    connection has no TLS.
    """

    def __init__(self) -> None:
        self._rest = b""

    def sent(self, data: bytes) -> int:
        return 0

    def answered(self, data: bytes) -> int:
        data = self._rest + data
        position = waits = 0
        while len(data) >= position + 5:
            end = position + 1 + int.from_bytes(data[position + 1 : position + 5], "big")
            if end > len(data):
                break
            waits += data[position : position + 1] in (b"Z", b"G")
            position = end
        self._rest = data[position:]
        return waits


class CountingProxy:
    """Passes bytes between `port` and a server's port. `waits`: waits of all connections, since `reset`."""

    def __init__(self, target: int, make_waits: Callable[[], Waits]) -> None:
        self._target = target
        self._make_waits = make_waits
        self._counting = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = [self._listener]
        self._cut_at: int | None = None
        self._with_answer = False
        self.port: int = self._listener.getsockname()[1]
        self.waits = 0

    def reset(self) -> None:
        self.waits = 0

    def cut_after(self, waits: int, *, with_answer: bool) -> None:
        """Cut a connection once, when so many waits have ended; the client gets the last answer, or does not."""
        self.reset()
        self._cut_at, self._with_answer = waits, with_answer

    @property
    def has_cut(self) -> bool:
        return self._cut_at is None

    def count(self, work: Callable[[], object]) -> int:
        self.reset()
        work()
        return self.waits

    def serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                waits = self._make_waits()
                self._ends += [client, server]
                for source, target, note in ((client, server, waits.sent), (server, client, waits.answered)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._pass, args=(source, target, note), daemon=True).start()

    def close(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _pass(self, source: socket.socket, target: socket.socket, note: Callable[[bytes], int]) -> None:
        with contextlib.suppress(OSError):  # one end has closed, and so closes the other
            while data := source.recv(_READ):
                waits = note(data)
                with self._counting:
                    self.waits += waits
                    cut = waits > 0 and self.waits == self._cut_at
                if not cut or self._with_answer:
                    target.sendall(data)
                if cut:
                    self._cut_at = None
                    source.shutdown(socket.SHUT_RDWR)
                    break
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def counting_proxy(target: int, make_waits: Callable[[], Waits] = Turns) -> Iterator[CountingProxy]:
    """A proxy before the server at port `target` of 127.0.0.1."""
    proxy = CountingProxy(target, make_waits)
    threading.Thread(target=proxy.serve, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.close()
