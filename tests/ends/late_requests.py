"""A network that delays a request: the sender loses the connection, the server gets the request when the test delivers
it.
"""

import contextlib
import queue
import socket
import threading
from typing import Self


class LateRequests:
    """A proxy before a server. `keep_next(mark)`: keeps the next request that contains these bytes, and cuts the
    connection; `deliver()` sends the kept request and returns the server's answer.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._mark: bytes | None = None
        self._kept: tuple[socket.socket, bytes] | None = None
        self._late_answers: queue.Queue[bytes] = queue.Queue()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def keep_next(self, mark: bytes) -> None:
        self._mark = mark

    def deliver(self) -> bytes:
        assert self._kept is not None, "no request was kept"
        server, request = self._kept
        server.sendall(request)
        return self._late_answers.get(timeout=120)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listening, *self._open):
            _end(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answers, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                if self._mark is not None and self._mark in data:
                    self._mark, self._kept = None, (server, data)
                    _end(client)
                    return
                server.sendall(data)
            _end(server)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                if self._kept is not None and self._kept[0] is server:
                    self._late_answers.put(data)
                else:
                    client.sendall(data)


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
